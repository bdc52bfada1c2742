// Training's convolutions and norms for any machine.
#include "train_kernels.h"

#define PENSTOCK_ISA baseline
#define PENSTOCK_VEC_BASELINE
#include "train_conv.inl"
#include "train_norm.inl"

namespace penstock {
const TrainKernels* train_kernels_baseline() { return &baseline::kTrainTable; }
}  // namespace penstock
