// The peak for NEON.
#include "machine/peak.h"
#include "machine/targets.h"

#if PENSTOCK_ARM64
#include "machine/target_neon.h"
#include "machine/peak.inl"
#include "machine/target_end.h"
#endif
