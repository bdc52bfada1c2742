// The int8 kernels for AVX-512 with VNNI and VBMI: those of VNNI alone, with a quicker gathering of weights.
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
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi"))), \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")
#endif
#define PENSTOCK_ISA int8_avx512_vbmi
#define PENSTOCK_VEC_AVX512
#define PENSTOCK_VEC_VNNI
#include "int8/vec.h"

namespace penstock {
namespace PENSTOCK_ISA {
#include "int8/numbers.inl"
//
#include "int8/filters.inl"
//
#include "int8/gather_vbmi.inl"
}  // namespace PENSTOCK_ISA
}  // namespace penstock
#if defined(__clang__)
#pragma clang attribute pop
#endif

namespace penstock {

const Int8Kernels& int8_kernels_avx512();

const Int8Kernels& int8_kernels_avx512_vbmi() {
  static const Int8Kernels table = [] {
    Int8Kernels made = int8_kernels_avx512();
    made.name = PENSTOCK_TEXT(PENSTOCK_ISA);
    made.gather = int8_avx512_vbmi::gather;
    return made;
  }();
  return table;
}

}  // namespace penstock
#endif
