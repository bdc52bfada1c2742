// Kernels on maps of pixels for AVX2 and FMA.
#include <type_traits>
#include <utility>

#include "lanes/kernels.h"
#include "machine/targets.h"

#if PENSTOCK_X86
#include "machine/target_avx2.h"
#include "lanes/table.inl"
#include "machine/target_end.h"
#endif
