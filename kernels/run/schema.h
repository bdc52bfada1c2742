// Every number of a program that has a meaning: kinds, fields, functions, formats. Defined here once.
//
// Each list below becomes an enum for C++ and a row of names for whoever writes programs (`schema()`, which the Python module
// hands out as SCHEMA). A name's place in its list is its number. Adding at the end of a list of values keeps old programs
// readable; any other change needs a new kFormat.
#pragma once
#include <cstdint>

namespace penstock {

constexpr std::int64_t kFormat = 4;

// clang-format off
// `zero` and `scale_bits`, the bits of a float, say what codes stand for: scale * (code - zero).
#define PENSTOCK_TENSOR_FIELDS(X) X(element) X(layout) X(channels) X(height) X(width) X(halo) X(offset) X(zero) X(scale_bits)

// What a value is; a code is a byte (int8/pixels.h).
#define PENSTOCK_ELEMENTS(X) X(float32) X(code8)

// How a feature map lies in memory: `planes` as planes.h says; `vector` is one value for each channel, packed in the order of the
// channel list; `pixels` has the channels of a pixel side by side (pixels.h for floats, int8/pixels.h for codes). An image in the
// caller's memory is `bare`, planes without padding, which no program can ask for.
#define PENSTOCK_LAYOUTS(X) X(planes) X(vector) X(pixels) X(bare)

// How the weights of a convolution lie. Programs carry two formats: `filters` is [out][in / groups][tap], and `code_filters` the same
// as int8, four in the place of a float, with `weight_scales` for the outputs. Planning makes the others, or an image's task does:
// Winograd's transforms by group of positions (`positions`), with one cache line for each pair of channels (`lines`), those of the
// active channels alone side by side (`gathered`), and transforms down the rows (`row_positions`).
#define PENSTOCK_WEIGHT_FORMATS(X) X(filters) X(code_filters) X(positions) X(lines) X(gathered) X(row_positions)

// `depthwise` has the fields of `conv`; it keeps its input's list, and a channel that is not in it leaves as the constant
// function(bias). `spread` stores such constants as planes, for readers that need every channel. `listed` is a convolution that
// computes some pixels only (listed/listed.h). `threshold_conv` is a gated `conv` whose winners are above a threshold, the number that
// follows rho; the winners it is given are then the most that it may have.
#define PENSTOCK_OP_KINDS(X)                                                                              \
  X(import_image) X(export_result) X(conv) X(pool) X(adaptive_pool) X(add) X(concat) X(affine) X(scale) \
  X(linear) X(pack) X(channel_norm) X(depthwise) X(spread) X(listed) X(threshold_conv)

// Fields of every operation; those of its kind follow. An offset into the weights, or a tensor, that is not there is -1.
#define PENSTOCK_OP_FIELDS(X) X(kind) X(in) X(in2) X(out) X(function) X(layer) X(knob)

// `levels`: the first argument of the layer's levels: their number L, bias, gain, then L - 1 edges; rho then has L rows, as bias
// and gain have. `after` is the function applied after the addition of in2.
#define PENSTOCK_CONV_FIELDS(X)                                                                                    \
  X(kernel_h) X(kernel_w) X(stride_h) X(stride_w) X(pad_h) X(pad_w) X(dilation_h) X(dilation_w) X(groups)        \
  X(weight_format) X(weights) X(bias) X(phi) X(rho) X(summary) X(after) X(algorithm) X(levels) X(weight_scales)
#define PENSTOCK_POOL_FIELDS(X)                                                                                            \
  X(pool) X(kernel_h) X(kernel_w) X(stride_h) X(stride_w) X(pad_h) X(pad_w) X(dilation_h) X(dilation_w) X(divisor) \
  X(count_padding)
#define PENSTOCK_ADAPTIVE_POOL_FIELDS(X) X(pool)
#define PENSTOCK_CONCAT_FIELDS(X) X(first_argument) X(arguments)
// With `arguments`, the operation works on those tensors side by side, as if they had been concatenated; with 0 on `in` alone.
#define PENSTOCK_AFFINE_FIELDS(X) X(scale) X(shift) X(first_argument) X(arguments)
#define PENSTOCK_LINEAR_FIELDS(X) X(weights) X(bias)
#define PENSTOCK_CHANNEL_NORM_FIELDS(X) X(scale) X(shift)
// Without in2: `pixels` arguments from `first_pixel` on are the pixels (y * width + x) that are computed, rising, and one for each
// pixel of the result from `nearest` on is the place in that list from which it takes its value. With in2, a map of one channel,
// pixels where it is not zero are computed and multiplied with it, and `shift` is added.
#define PENSTOCK_LISTED_FIELDS(X)                                                                                      \
  X(kernel_h) X(kernel_w) X(stride_h) X(stride_w) X(pad_h) X(pad_w) X(dilation_h) X(dilation_w) X(weights) X(bias) \
  X(shift) X(first_pixel) X(pixels) X(nearest)

// `slope` belongs to leaky_relu and is elu's alpha; `second` is channel_norm's eps, or the slope after a convolution's addition.
#define PENSTOCK_SCALARS(X) X(slope) X(second)

// What a convolution can apply itself, and what only stands alone.
#define PENSTOCK_ACTIVATIONS(X) X(none) X(relu) X(relu6) X(silu) X(gelu) X(hardswish) X(leaky_relu)
#define PENSTOCK_FUNCTIONS(X) PENSTOCK_ACTIVATIONS(X) X(sigmoid) X(hardsigmoid) X(tanh) X(gelu_tanh) X(mish) X(softsign) X(elu) X(selu)

#define PENSTOCK_SUMMARIES(X) X(l1) X(l2) X(linf) X(variance)
#define PENSTOCK_POOLS(X) X(max) X(average)
// clang-format on

#define PENSTOCK_SCHEMA(X)                            \
  X(TensorField, PENSTOCK_TENSOR_FIELDS)              \
  X(Element, PENSTOCK_ELEMENTS)                       \
  X(Layout, PENSTOCK_LAYOUTS)                         \
  X(WeightFormat, PENSTOCK_WEIGHT_FORMATS)            \
  X(OpKind, PENSTOCK_OP_KINDS)                        \
  X(OpField, PENSTOCK_OP_FIELDS)                      \
  X(ConvField, PENSTOCK_CONV_FIELDS)                  \
  X(PoolField, PENSTOCK_POOL_FIELDS)                  \
  X(AdaptivePoolField, PENSTOCK_ADAPTIVE_POOL_FIELDS) \
  X(ConcatField, PENSTOCK_CONCAT_FIELDS)              \
  X(AffineField, PENSTOCK_AFFINE_FIELDS)              \
  X(LinearField, PENSTOCK_LINEAR_FIELDS)              \
  X(ChannelNormField, PENSTOCK_CHANNEL_NORM_FIELDS)   \
  X(ListedField, PENSTOCK_LISTED_FIELDS)              \
  X(Scalar, PENSTOCK_SCALARS)                         \
  X(Activation, PENSTOCK_ACTIVATIONS)                 \
  X(Function, PENSTOCK_FUNCTIONS)                     \
  X(Summary, PENSTOCK_SUMMARIES)                      \
  X(Pool, PENSTOCK_POOLS)

#define PENSTOCK_VALUE(name) name,
#define PENSTOCK_ONE(name) +1
#define PENSTOCK_ENUM(Type, LIST)                 \
  enum class Type : int { LIST(PENSTOCK_VALUE) }; \
  constexpr int k##Type##Count = 0 LIST(PENSTOCK_ONE);
PENSTOCK_SCHEMA(PENSTOCK_ENUM)
#undef PENSTOCK_ENUM
#undef PENSTOCK_ONE
#undef PENSTOCK_VALUE

constexpr int kTensorFields = kTensorFieldCount;
constexpr int kOpFields = kOpFieldCount + kConvFieldCount;  // the kind with the most fields
constexpr int kOpScalars = kScalarCount;

struct SchemaRow {
  const char* name;
  const char* const* names;
  int count;
};
// One row for each enum above; `count` becomes their number.
const SchemaRow* schema(int& count);

}  // namespace penstock
