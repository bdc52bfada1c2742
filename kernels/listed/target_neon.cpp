// Convolution at listed pixels for NEON.
#include "machine/targets.h"
#include "listed/kernels.h"

#if PENSTOCK_ARM64
#include "machine/target_neon.h"
#include "listed/table.inl"
#include "machine/target_end.h"
#endif
