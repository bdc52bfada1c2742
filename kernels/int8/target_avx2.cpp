// The int8 kernels for AVX2.
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

#if PENSTOCK_X86
#include <immintrin.h>

#include "machine/no_contraction.h"
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC target("avx2")
#endif
#define PENSTOCK_ISA int8_avx2
#define PENSTOCK_VEC_AVX2
#include "int8/vec.h"
#include "int8/table.inl"
#if defined(__clang__)
#pragma clang attribute pop
#endif

namespace penstock {
const Int8Kernels& int8_kernels_avx2() { return int8_avx2::kTable; }
}  // namespace penstock
#endif
