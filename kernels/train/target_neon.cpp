// Training's convolutions and norms for NEON.
#include "machine/targets.h"
#include "train/kernels.h"

#if PENSTOCK_ARM64
#include "machine/target_neon.h"
#include "train/table.inl"
#include "machine/target_end.h"
#endif
