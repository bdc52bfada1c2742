// The peak for AVX2 and FMA.
#include "machine/peak.h"
#include "machine/targets.h"

#if PENSTOCK_X86
#include "machine/target_avx2.h"
#include "machine/peak.inl"
#include "machine/target_end.h"
#endif
