// Training convolutions for any machine.
#include "train_conv.h"

#define PENSTOCK_ISA baseline
#define PENSTOCK_VEC_BASELINE
#include "train_conv.inl"

namespace penstock {
const TrainConvKernels* train_conv_kernels_baseline() { return &baseline::kTrainTable; }
}  // namespace penstock
