// The int8 kernels for AVX-512 with VNNI.
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
#define PENSTOCK_ISA int8_avx512_vnni
#define PENSTOCK_AVX512 "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma"
#define PENSTOCK_VEC_VNNI
#include "machine/target_avx512.h"
#include "int8/table.inl"
#include "machine/target_end.h"

namespace penstock {
const Int8Kernels& int8_kernels_avx512_vnni() { return int8_avx512_vnni::kTable; }
}  // namespace penstock
#endif
