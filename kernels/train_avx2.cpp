// Training's convolutions and norms for AVX2 and FMA; standard headers come before the target, so that their functions stay portable.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "train_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define PENSTOCK_ISA avx2
#define PENSTOCK_VEC_AVX2
#include "train_conv.inl"
#include "train_norm.inl"
#pragma GCC pop_options

namespace penstock {
const TrainKernels* train_kernels_avx2() { return &avx2::kTrainTable; }
}  // namespace penstock

#else

namespace penstock {
const TrainKernels* train_kernels_avx2() { return nullptr; }
}  // namespace penstock

#endif
