// Switches AVX-512 on, up to target_end.h. Everything that is not a kernel is included before this, so that its inline functions
// stay portable.
#include <immintrin.h>

// GCC 12 warns about its own header here (its "undefined" vectors).
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#define PENSTOCK_ISA avx512
#define PENSTOCK_VEC "machine/vec_avx512.h"
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512vl,avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512vl,avx2,fma")
#endif
