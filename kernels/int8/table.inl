// The kernels of one instruction set; included by target_*.cpp after kernels.h and the vector type.
namespace penstock {
namespace PENSTOCK_ISA {

#if defined(PENSTOCK_VEC_AVX512)
constexpr bool kQuadCodes = true;
constexpr Isa kIsa = Isa::avx512;
#elif defined(PENSTOCK_VEC_AVX2)
constexpr bool kQuadCodes = false;
constexpr Isa kIsa = Isa::avx2;
#elif defined(PENSTOCK_VEC_NEON)
#if defined(PENSTOCK_VEC_DOT) || defined(PENSTOCK_VEC_MATRIX)
constexpr bool kQuadCodes = true;
#else
constexpr bool kQuadCodes = false;
#endif
constexpr Isa kIsa = Isa::neon;
#else
constexpr bool kQuadCodes = false;
constexpr Isa kIsa = Isa::baseline;
#endif
// Inputs that a lane multiplies at once, and the bytes of their weights for a vector of outputs.
#if defined(PENSTOCK_VEC_MATRIX)
constexpr int kGroup = 8, kGroupBytes = 8 * kLanes;
#else
constexpr int kGroup = kQuadCodes ? 4 : 2, kGroupBytes = kVectorBytes;
#endif
constexpr int kMostTaps = kInt8MostTaps;

PENSTOCK_INLINE int round_words(int count) { return (count + 2 * kLanes - 1) / (2 * kLanes) * (2 * kLanes); }

#include "int8/finish.inl"
#include "int8/gather.inl"
#include "int8/direct.inl"
#include "int8/winograd.inl"
#include "int8/depthwise.inl"
#include "int8/maps.inl"

static const Int8Kernels kTable = {PENSTOCK_TEXT(PENSTOCK_ISA),
                                   kIsa,
                                   kLanes,
                                   kMostVectors,
                                   kGroup,
                                   gather,
                                   direct,
                                   winograd,
                                   depthwise,
                                   gather_depthwise,
                                   {combine, pool_codes, sum_codes, import_codes, codes_to_floats, floats_to_codes}};

}  // namespace PENSTOCK_ISA
}  // namespace penstock
