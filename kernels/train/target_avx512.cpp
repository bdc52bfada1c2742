// Training's convolutions and norms for AVX-512.
#include "machine/targets.h"
#include "train/kernels.h"

#if PENSTOCK_X86_512
#include "machine/target_avx512.h"
#include "train/table.inl"
#include "machine/target_end.h"
#endif
