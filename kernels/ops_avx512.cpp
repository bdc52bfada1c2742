// The kernels of ops.h for avx512.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512dq,avx512vl,avx2,fma")
#pragma GCC optimize("fp-contract=off")
#pragma GCC diagnostic ignored "-Wpsabi"
#include "ops.h"

namespace penstock {
namespace ops_avx512 {
#include "ops.inl"
}  // namespace ops_avx512

const OpKernels& op_kernels_avx512() { return ops_avx512::kTable; }

}  // namespace penstock
#endif
