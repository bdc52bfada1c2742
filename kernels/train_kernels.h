// Training's kernels, one table for each instruction set.
#pragma once
#include "cpu.h"
#include "train_conv.h"
#include "train_norm.h"

namespace penstock {

struct TrainKernels {
  TrainConvKernels conv;
  TrainNormKernels norm;
};

// Of a set that this machine has.
const TrainKernels& train_kernels(Isa isa);

// Null where the set was not compiled in.
const TrainKernels* train_kernels_baseline();
const TrainKernels* train_kernels_avx2();
const TrainKernels* train_kernels_avx512();

}  // namespace penstock
