// The int8 kernels for NEON: products of words.
//
// Headers come before the target is switched on, so that their inline functions stay portable.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "int8/kernels.h"
#include "machine/targets.h"

#if PENSTOCK_ARM64
#include <arm_neon.h>

#include "machine/no_contraction.h"
#define PENSTOCK_ISA int8_neon
#define PENSTOCK_VEC_NEON
#include "int8/vec.h"
#include "int8/table.inl"

namespace penstock {
const Int8Kernels& int8_kernels_neon() { return int8_neon::kTable; }
}  // namespace penstock
#endif
