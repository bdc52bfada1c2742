// Switches NEON's products of matrices of bytes (i8mm, ARMv8.6) on, up to target_end.h. Everything that is not a kernel is included before this, so that its
// inline functions stay portable.
#include <arm_neon.h>

#ifndef PENSTOCK_ISA
#define PENSTOCK_ISA neon_matrix
#endif
#define PENSTOCK_VEC "machine/vec_neon.h"
#define PENSTOCK_CODES "machine/codes_neon.h"
#define PENSTOCK_VEC_MATRIX
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("i8mm"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("arch=armv8.2-a+i8mm")
#endif
