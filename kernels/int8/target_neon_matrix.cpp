// The int8 kernels for NEON with products of 8-bit matrices (i8mm, ARMv8.6).
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
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("i8mm"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("arch=armv8.2-a+i8mm")
#endif
#define PENSTOCK_ISA int8_neon_matrix
#define PENSTOCK_VEC_NEON
#define PENSTOCK_VEC_MATRIX
#include "int8/vec.h"
#include "int8/table.inl"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace penstock {
const Int8Kernels& int8_kernels_neon_matrix() { return int8_neon_matrix::kTable; }
}  // namespace penstock
#endif
