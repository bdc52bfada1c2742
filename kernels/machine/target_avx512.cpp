// The peak for AVX-512.
#include "machine/peak.h"
#include "machine/targets.h"

#if PENSTOCK_X86_512
#include "machine/target_avx512.h"
#include "machine/peak.inl"
#include "machine/target_end.h"
#endif
