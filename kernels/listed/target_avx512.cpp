// Convolution at listed pixels for AVX-512.
#include "machine/targets.h"
#include "listed/kernels.h"

#if PENSTOCK_X86_512
#include "machine/target_avx512.h"
#include "listed/table.inl"
#include "machine/target_end.h"
#endif
