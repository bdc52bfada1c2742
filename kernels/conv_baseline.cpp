// Convolution kernels for any machine.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "conv_kernels.h"

#define PENSTOCK_ISA baseline
#define PENSTOCK_VEC_BASELINE
#include "conv_table.inl"

namespace penstock {
const ConvKernels* conv_kernels_baseline() { return &baseline::kTable; }
}  // namespace penstock
