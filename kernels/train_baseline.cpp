// Training's convolutions and norms for any machine.
#include "train_conv.h"
#include "train_norm.h"

#define PENSTOCK_ISA baseline
#define PENSTOCK_VEC_BASELINE
#include "train_conv.inl"
#include "train_norm.inl"

namespace penstock {
const TrainConvKernels* train_conv_kernels_baseline() { return &baseline::kTrainTable; }
const TrainNormKernels* train_norm_kernels_baseline() { return &baseline::kNormTable; }
}  // namespace penstock
