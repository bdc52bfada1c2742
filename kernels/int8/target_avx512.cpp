// The int8 kernels for AVX-512 without VNNI: pairs of words, as AVX2 multiplies them.
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
#define PENSTOCK_ISA int8_avx512
#define PENSTOCK_AVX512 "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"
#include "machine/target_avx512.h"
#include "int8/table.inl"
#include "machine/target_end.h"

namespace penstock {
const Int8Kernels& int8_kernels_avx512() { return int8_avx512::kTable; }
}  // namespace penstock
#endif
