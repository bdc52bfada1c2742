// Kernels on maps of pixels for NEON.
#include <type_traits>
#include <utility>

#include "lanes/kernels.h"
#include "machine/targets.h"

#if PENSTOCK_ARM64
#include "machine/target_neon.h"
#include "lanes/table.inl"
#include "machine/target_end.h"
#endif
