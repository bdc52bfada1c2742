// Switches AVX2 and FMA on, up to target_end.h. Everything that is not a kernel is included before this, so that its inline functions
// stay portable.
#include <immintrin.h>

#ifndef PENSTOCK_ISA
#define PENSTOCK_ISA avx2
#endif
#define PENSTOCK_VEC "machine/vec_avx2.h"
#define PENSTOCK_CODES "machine/codes_avx2.h"
#define PENSTOCK_EIGHT_FLOATS  // fit in a register (vec8.h)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
