// NEON needs no switch: every 64-bit ARM core has it.
#include <arm_neon.h>

#ifndef PENSTOCK_ISA
#define PENSTOCK_ISA neon
#endif
#define PENSTOCK_VEC "machine/vec_neon.h"
#define PENSTOCK_CODES "machine/codes_neon.h"
#define PENSTOCK_NO_TARGET
