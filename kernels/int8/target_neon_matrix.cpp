// The int8 kernels for NEON with products of 8-bit matrices (i8mm, ARMv8.6).
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
#define PENSTOCK_ISA int8_neon_matrix
#include "machine/target_neon_matrix.h"
#include "int8/table.inl"
#include "machine/target_end.h"

namespace penstock {
const Int8Kernels& int8_kernels_neon_matrix() { return int8_neon_matrix::kTable; }
}  // namespace penstock
#endif
