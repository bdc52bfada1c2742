// Training's kernels, one table for each instruction set.
#pragma once
#include <algorithm>  // for the kernels, which may include no standard header: it would be compiled for their instruction set

#include "machine/cpu.h"
#include "train/conv.h"
#include "train/norm.h"
#include "train/skip.h"

namespace penstock {

struct TrainKernels {
  TrainConvKernels conv;
  TrainNormKernels norm;
  SkipKernels skip;
};

// The kernels of an instruction set that this machine has.
const TrainKernels& train_kernels(Isa isa);

// train_kernels_<name>() for every instruction set; those of other architectures do not exist.
#define TARGET(name, architecture, runs_here, wide) const TrainKernels* train_kernels_##name();
#include "machine/targets.def"
#undef TARGET

}  // namespace penstock
