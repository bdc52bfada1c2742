// The table of one instruction set's kernels; each target_<set>.cpp includes this once, with its target on.
#include "machine/prefetch.h"
#include "machine/vec.h"

#include "conv/curves.inl"

#include "lanes/ahead.inl"

#include "lanes/multiply.inl"

#include "lanes/gather.inl"

#include "lanes/turn.inl"

#include "lanes/depthwise.inl"

#include "ops/window.inl"

#include "lanes/maps.inl"

namespace penstock {
namespace PENSTOCK_ISA {

static const LanesKernels kLanesTable = {kLanes,         kPickSpan,   multiply_panel, gather_panel, turn_panel, convolve_depthwise,
                                         combine_pixels, pool_pixels, sum_pixels,     to_pixels,    to_planes};

}  // namespace PENSTOCK_ISA

const LanesKernels* PENSTOCK_JOIN(lanes_kernels_, PENSTOCK_ISA)() { return &PENSTOCK_ISA::kLanesTable; }

}  // namespace penstock
