#include "train_kernels.h"

namespace penstock {

const TrainKernels& train_kernels(Isa isa) {
  switch (isa) {
    case Isa::avx512:
      return *train_kernels_avx512();
    case Isa::avx2:
      return *train_kernels_avx2();
    default:
      return *train_kernels_baseline();
  }
}

}  // namespace penstock
