// The table of one instruction set's kernels; each target_<set>.cpp includes this once, with its target on.
#include "machine/vec.h"

#include "conv/store.inl"

#include "conv/prefetch.inl"

#include "conv/direct.inl"

#include "conv/packed.inl"

#include "conv/outputs.inl"

#include "conv/winograd.inl"

#include "conv/rows.inl"

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

const ConvKernels* PENSTOCK_JOIN(conv_kernels_, PENSTOCK_ISA)() { return &PENSTOCK_ISA::kTable; }

}  // namespace penstock
