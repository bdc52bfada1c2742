// Convolution kernels for NEON.
#include <type_traits>
#include <utility>

#include "conv/kernels.h"
#include "machine/targets.h"

#if PENSTOCK_ARM64
#include "machine/target_neon.h"
#include "conv/table.inl"
#include "machine/target_end.h"
#endif
