// Nothing is switched on: what every machine of the architecture runs.
#define PENSTOCK_ISA baseline
#define PENSTOCK_VEC "machine/vec_scalar.h"
#define PENSTOCK_NO_TARGET
