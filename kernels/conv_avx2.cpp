// Convolution kernels for AVX2 and FMA.
//
// Standard headers come before the target is switched on, so that their inline functions stay portable.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "conv_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define PENSTOCK_ISA avx2
#define PENSTOCK_VEC_AVX2
#include "conv_table.inl"
#pragma GCC pop_options

namespace penstock {
const ConvKernels* conv_kernels_avx2() { return &avx2::kTable; }
}  // namespace penstock

#else

namespace penstock {
const ConvKernels* conv_kernels_avx2() { return nullptr; }
}  // namespace penstock

#endif
