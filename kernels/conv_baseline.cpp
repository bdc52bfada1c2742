// Convolution kernels for any machine.
#include "conv_kernels.h"

#define PENSTOCK_ISA baseline
#define PENSTOCK_VEC_BASELINE
#include "conv_table.inl"

namespace penstock {
const ConvKernels* conv_kernels_baseline() { return &baseline::kTable; }
}  // namespace penstock
