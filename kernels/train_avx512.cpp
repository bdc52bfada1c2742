// Training's convolutions and norms for AVX-512; standard headers come before the target, so that their functions stay portable.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "train_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512vl,avx2,fma")
#define PENSTOCK_ISA avx512
#define PENSTOCK_VEC_AVX512
#include "train_conv.inl"
#include "train_norm.inl"
#pragma GCC pop_options

namespace penstock {
const TrainKernels* train_kernels_avx512() { return &avx512::kTrainTable; }
}  // namespace penstock

#else

namespace penstock {
const TrainKernels* train_kernels_avx512() { return nullptr; }
}  // namespace penstock

#endif
