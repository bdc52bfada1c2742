// The kernels of ops.h for AVX-512.
#include "machine/targets.h"
#include "ops/ops.h"

#if PENSTOCK_X86_512
#include "machine/no_contraction.h"
#include "machine/target_avx512.h"
#include "ops/table.inl"
#include "machine/target_end.h"
#endif
