// Switches NEON's dot products of bytes (ARMv8.2) on, up to target_end.h. Everything that is not a kernel is included before this, so that its
// inline functions stay portable.
#include <arm_neon.h>

#ifndef PENSTOCK_ISA
#define PENSTOCK_ISA neon_dot
#endif
#define PENSTOCK_VEC "machine/vec_neon.h"
#define PENSTOCK_CODES "machine/codes_neon.h"
#define PENSTOCK_VEC_DOT
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("arch=armv8.2-a+dotprod")
#endif
