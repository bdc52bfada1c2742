// Convolution kernels for AVX-512.
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

// GCC 12 warns about its own header here (its "undefined" vectors).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512vl,avx2,fma")
#define PENSTOCK_ISA avx512
#define PENSTOCK_VEC_AVX512
#include "conv_table.inl"
#pragma GCC pop_options

namespace penstock {
const ConvKernels* conv_kernels_avx512() { return &avx512::kTable; }
}  // namespace penstock

#else

namespace penstock {
const ConvKernels* conv_kernels_avx512() { return nullptr; }
}  // namespace penstock

#endif
