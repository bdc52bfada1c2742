#include "train/kernels.h"

#include "machine/targets.h"

namespace penstock {

const TrainKernels& train_kernels(Isa isa) {
  static const TrainKernels* const tables[] = {
#define TARGET(name, architecture, runs_here, wide) PENSTOCK_WHERE(architecture, train_kernels_##name(), nullptr),
#include "machine/targets.def"
#undef TARGET
  };
  return *tables[static_cast<int>(isa)];
}

}  // namespace penstock
