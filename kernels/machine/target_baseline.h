// Nothing is switched on: what every machine of the architecture runs.
#ifndef PENSTOCK_ISA
#define PENSTOCK_ISA baseline
#endif
#define PENSTOCK_VEC "machine/vec_scalar.h"
#define PENSTOCK_CODES "machine/codes_scalar.h"
#define PENSTOCK_NO_TARGET
