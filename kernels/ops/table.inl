// The kernels of ops.h for one instruction set; each target_<set>.cpp includes this once, with its target on.
#include "machine/vec8.h"

#include "machine/curves.inl"
//
#include "ops/functions.inl"

#include "ops/sums.inl"

#include "ops/window.inl"

#include "ops/pools.inl"

#include "ops/pointwise.inl"

namespace penstock {
namespace PENSTOCK_ISA {

static const OpKernels kTable = {all_finite, import_plane,  export_plane, summarise, combine_rows, dot_blocks,  count_at_least,
                                 pool,       reduce_window, affine,       add,       apply,        channel_norm};

}  // namespace PENSTOCK_ISA

const OpKernels* PENSTOCK_JOIN(op_kernels_, PENSTOCK_ISA)() { return &PENSTOCK_ISA::kTable; }

}  // namespace penstock
