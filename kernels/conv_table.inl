// The table of one instruction set's kernels; each conv_<set>.cpp includes this once, with its target on.
#include "vec.h"

#include "conv_store.inl"

#include "conv_ahead.inl"

#include "conv_direct.inl"

#include "conv_packed.inl"

#include "conv_outputs.inl"

#include "conv_winograd.inl"

#include "conv_rows.inl"

namespace penstock {
namespace PENSTOCK_ISA {

static const ConvKernels kTable = {kLanes,
                                   kPanel,
                                   kPanelFloats,
                                   kOutputVectors,
                                   {winograd_transform<Tile2>, winograd_gather<Tile2>, winograd_multiply<Tile2>},
                                   {winograd_transform<Tile4>, winograd_gather<Tile4>, winograd_multiply<Tile4>},
                                   run_direct,
                                   run_split,
                                   run_packed,
                                   run_outputs,
                                   run_rows<Rows3>,
                                   run_rows<Rows3By2>,
                                   run_rows<Rows7>};

}  // namespace PENSTOCK_ISA
}  // namespace penstock
