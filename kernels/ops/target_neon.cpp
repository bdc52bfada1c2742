// The kernels of ops.h for NEON.
#include "machine/targets.h"
#include "ops/ops.h"

#if PENSTOCK_ARM64
#include "machine/no_contraction.h"
#include "machine/target_neon.h"
#include "ops/table.inl"
#include "machine/target_end.h"
#endif
