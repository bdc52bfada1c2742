// The table of one instruction set's kernels for training.
#include "train/conv.inl"
#include "train/norm.inl"
#include "train/skip_tiles.inl"
#include "train/skip_products.inl"

namespace penstock {
namespace PENSTOCK_ISA {

static const TrainKernels kTrainTable = {kTrainConv, kTrainNorm, kSkip};

}  // namespace PENSTOCK_ISA

const TrainKernels* PENSTOCK_JOIN(train_kernels_, PENSTOCK_ISA)() { return &PENSTOCK_ISA::kTrainTable; }

}  // namespace penstock
