// Kernels on maps of pixels for AVX-512.
#include <type_traits>
#include <utility>

#include "lanes/kernels.h"
#include "machine/targets.h"

#if PENSTOCK_X86_512
#include "machine/target_avx512.h"
#include "lanes/table.inl"
#include "machine/target_end.h"
#endif
