// The table of one instruction set's kernels; each conv_<set>.cpp includes this once, with its target on.
#include "vec.h"

#include "conv_store.inl"

#include "conv_direct.inl"

namespace penstock {
namespace PENSTOCK_ISA {

static const ConvKernels kTable = {kLanes, run_direct, run_split};

}  // namespace PENSTOCK_ISA
}  // namespace penstock
