// The kernels of ops.h for any machine.
#include "machine/targets.h"
#include "ops/ops.h"

#include "machine/no_contraction.h"
#include "machine/target_baseline.h"
#include "ops/table.inl"
#include "machine/target_end.h"
