// The kernels of ops.h for avx2.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#if defined(__x86_64__)
#pragma GCC target("avx2,fma")
#pragma GCC optimize("fp-contract=off")
#pragma GCC diagnostic ignored "-Wpsabi"
#include "ops.h"

namespace penstock {
namespace ops_avx2 {
#include "ops.inl"
}  // namespace ops_avx2

const OpKernels& op_kernels_avx2() { return ops_avx2::kTable; }

}  // namespace penstock
#endif
