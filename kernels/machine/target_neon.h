// NEON needs no switch: every 64-bit ARM core has it.
#include <arm_neon.h>

#define PENSTOCK_ISA neon
#define PENSTOCK_VEC "machine/vec_neon.h"
#define PENSTOCK_NO_TARGET
