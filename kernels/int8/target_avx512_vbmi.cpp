// The int8 kernels for AVX-512 with VNNI and VBMI: those of VNNI alone, with a quicker gathering of weights.
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

#if PENSTOCK_X86_512
#include "machine/no_contraction.h"
#define PENSTOCK_ISA int8_avx512_vbmi
#define PENSTOCK_AVX512 "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma"
#define PENSTOCK_VEC_VNNI
#define PENSTOCK_VEC_VBMI
#include "machine/target_avx512.h"
#include "machine/codes.h"

namespace penstock {
namespace PENSTOCK_ISA {
#include "int8/numbers.inl"
//
#include "int8/filters.inl"
//
#include "int8/gather_windows.inl"
}  // namespace PENSTOCK_ISA
}  // namespace penstock
#include "machine/target_end.h"

namespace penstock {

const Int8Kernels& int8_kernels_avx512_vnni();

const Int8Kernels& int8_kernels_avx512_vbmi() {
  static const Int8Kernels table = [] {
    Int8Kernels made = int8_kernels_avx512_vnni();
    made.name = "int8_avx512_vbmi";
    made.gather = int8_avx512_vbmi::gather;
    made.permutes_bytes = true;
    made.gather_panel = int8_avx512_vbmi::gather_panel;
    return made;
  }();
  return table;
}

}  // namespace penstock
#endif
