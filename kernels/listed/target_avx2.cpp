// Convolution at listed pixels for AVX2 and FMA.
#include "machine/targets.h"
#include "listed/kernels.h"

#if PENSTOCK_X86
#include "machine/target_avx2.h"
#include "listed/table.inl"
#include "machine/target_end.h"
#endif
