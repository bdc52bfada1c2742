// The int8 kernels for AVX2.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "int8/kernels.h"
#include "machine/targets.h"

#if PENSTOCK_X86
#include "machine/no_contraction.h"
#define PENSTOCK_ISA int8_avx2
#include "machine/target_avx2.h"
#include "int8/table.inl"
#include "machine/target_end.h"

namespace penstock {
const Int8Kernels& int8_kernels_avx2() { return int8_avx2::kTable; }
}  // namespace penstock
#endif
