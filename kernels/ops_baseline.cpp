// The kernels of ops.h for baseline.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#pragma GCC optimize("fp-contract=off")
#pragma GCC diagnostic ignored "-Wpsabi"
#include "ops.h"

namespace penstock {
namespace ops_baseline {
#include "ops.inl"
}  // namespace ops_baseline

const OpKernels& op_kernels_baseline() { return ops_baseline::kTable; }

}  // namespace penstock
