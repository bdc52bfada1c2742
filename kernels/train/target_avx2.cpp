// Training's convolutions and norms for AVX2 and FMA.
#include "machine/targets.h"
#include "train/kernels.h"

#if PENSTOCK_X86
#include "machine/target_avx2.h"
#include "train/table.inl"
#include "machine/target_end.h"
#endif
