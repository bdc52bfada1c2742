// The int8 kernels for NEON: products of words.
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

#if PENSTOCK_ARM64
#include "machine/no_contraction.h"
#define PENSTOCK_ISA int8_neon
#include "machine/target_neon.h"
#include "int8/table.inl"
#include "machine/target_end.h"

namespace penstock {
const Int8Kernels& int8_kernels_neon() { return int8_neon::kTable; }
}  // namespace penstock
#endif
