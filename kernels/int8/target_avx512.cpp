// The int8 kernels for AVX-512 without VNNI: pairs of words, as AVX2 multiplies them.
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

#if PENSTOCK_X86_512
#include <immintrin.h>

#include "machine/no_contraction.h"
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")
#endif
#define PENSTOCK_ISA int8_avx512
#define PENSTOCK_VEC_AVX512
#include "int8/vec.h"
#include "int8/table.inl"
#if defined(__clang__)
#pragma clang attribute pop
#endif

namespace penstock {
const Int8Kernels& int8_kernels_avx512() { return int8_avx512::kTable; }
}  // namespace penstock
#endif
