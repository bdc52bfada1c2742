// The kernels of one instruction set; each target_<set>.cpp includes this once, after kernels.h and with its target on.
#include "machine/codes.h"

#include "machine/curves.inl"

#include "ops/window.inl"

namespace penstock {
namespace PENSTOCK_ISA {

#include "int8/numbers.inl"

#include "int8/finish.inl"
#if defined(PENSTOCK_VEC_VNNI)
#include "int8/filters.inl"
//
#include "int8/gather_windows.inl"
#else
#include "int8/gather.inl"
#endif
#include "int8/direct.inl"
#include "int8/winograd.inl"
#include "int8/depthwise.inl"
//
#include "int8/depthwise_quads.inl"
#include "int8/maps.inl"

static const Int8Kernels kTable = {PENSTOCK_TEXT(PENSTOCK_ISA),
                                   kIsa,
                                   kLanes,
                                   kMostVectors,
                                   kGroup,
                                   PENSTOCK_STREAMS != 0,
                                   gather,
                                   PENSTOCK_GATHERS_PANELS,
                                   false,
                                   direct,
                                   winograd,
                                   depthwise,
                                   gather_depthwise,
                                   PENSTOCK_DEPTHWISE_QUADS != 0,
                                   sum_rows,
                                   add_row,
                                   {combine, pool_codes, sum_codes, import_codes, codes_to_floats, floats_to_codes}};

}  // namespace PENSTOCK_ISA
}  // namespace penstock
