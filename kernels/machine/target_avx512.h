// Switches AVX-512 on, up to target_end.h. Everything that is not a kernel is included before this, so that its inline functions
// stay portable. Kernels that need more than F, DQ and VL name all of it in PENSTOCK_AVX512 beforehand.
#include <immintrin.h>

// GCC 12 warns about its own header here (its "undefined" vectors).
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#ifndef PENSTOCK_ISA
#define PENSTOCK_ISA avx512
#endif
#ifndef PENSTOCK_AVX512
#define PENSTOCK_AVX512 "avx512f,avx512dq,avx512vl,avx2,fma"
#endif
#define PENSTOCK_VEC "machine/vec_avx512.h"
#define PENSTOCK_CODES "machine/codes_avx512.h"
#define PENSTOCK_EIGHT_FLOATS    // fit in a register (vec8.h)
#define PENSTOCK_SIXTEEN_FLOATS  // as well
// Pragmas take no macros; _Pragma takes the text that one becomes.
#define PENSTOCK_PRAGMA(...) _Pragma(#__VA_ARGS__)
#if defined(__clang__)
#define PENSTOCK_SWITCH_ON(features) PENSTOCK_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#else
#pragma GCC push_options
#define PENSTOCK_SWITCH_ON(features) PENSTOCK_PRAGMA(GCC target(features))
#endif
PENSTOCK_SWITCH_ON(PENSTOCK_AVX512)
#undef PENSTOCK_SWITCH_ON
#undef PENSTOCK_PRAGMA
