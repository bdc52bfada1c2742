// A compiled network as plain numbers, and the check that every one of them makes sense.
//
// A program arrives as arrays (RawProgram): a table of tensors, a table of operations, float parameters of the
// operations, lists of arguments, and one buffer of weights. load_program() reads it into typed records, or
// refuses it with a message. After that the runtime trusts every size, index and offset.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "conv/conv.h"
#include "conv/buffer.h"
#include "int8/conv.h"
#include "int8/maps.h"
#include "listed/listed.h"
#include "ops/ops.h"
#include "run/pixels.h"
#include "run/schema.h"

namespace penstock {

struct ProgramError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Fields are those of schema.h: TensorField; OpField, then those of the operation's kind; Scalar. A tensor's offset counts floats
// from the arena's start.
struct RawProgram {
  std::int64_t format = 0;
  const std::int64_t* tensors = nullptr;
  std::int64_t tensor_count = 0;
  const std::int64_t* ops = nullptr;
  std::int64_t op_count = 0;
  const float* scalars = nullptr;  // op_count rows
  const std::int64_t* args = nullptr;
  std::int64_t arg_count = 0;
  const float* weights = nullptr;
  std::int64_t weight_count = 0;
  // Keeps 64-byte aligned weights where they are for as long as it is held; without it they are copied.
  std::shared_ptr<const void> weights_owner;
  std::int64_t layers = 0;  // layers that are counted
  std::int64_t knobs = 0;   // gated layers
};

struct Tensor {
  Element element;
  Layout layout;
  int channels;
  Planes shape;
  std::int64_t offset;
  std::int64_t step() const { return layout == Layout::vector ? 1 : shape.stride(); }
  Quantised quantised;  // scale and zero point, if the elements are codes
  bool whole = true;    // every channel is stored
  bool filled = false;  // a channel that is not stored holds a constant (Live::fill) rather than zeros
  bool is_codes() const { return element == Element::code8; }
  bool is_pixels() const { return layout == Layout::pixels && element == Element::float32; }
  // Floats of memory when `count` channels are stored.
  std::int64_t floats_for(std::int64_t count) const {
    if (layout != Layout::pixels) return step() * count;
    if (element == Element::float32) return pixels_floats(shape, static_cast<int>(count));
    return (pixels_size(shape, channels, static_cast<int>(count)) + 3) / 4;
  }
  std::int64_t floats() const { return floats_for(channels); }
  CodeMap codes(const float* data, int count) const {
    return {reinterpret_cast<const std::uint8_t*>(data), pixel_bytes(channels, count), shape, quantised.zero};
  }
};

// Memory of an operation besides its tensors, in floats: what all threads share, then an area for each thread, then the planes of
// one chunk (Op::chunk).
struct OpScratch {
  std::int64_t shared = 0, thread = 0, chunk = 0;
  std::int64_t spare = 0;  // memory that is free anyway and that a convolution may use; not counted in total()
  std::int64_t total(int threads) const { return shared + threads * thread + chunk; }
};

struct Op {
  OpKind kind;
  int in = -1, in2 = -1, out = -1;
  Function function = Function::none;
  float slope = 0.0f, eps = 0.0f;
  int layer = -1, knob = -1;
  const float* scale = nullptr;  // affine, channel_norm: one value for each channel
  const float* shift = nullptr;
  const float* weights = nullptr;  // linear: [in][out] for a vector, [out][in] for planes; conv of floats: [out][in / groups][tap]
  const float* bias = nullptr;     // linear, conv
  const float* phi = nullptr;      // gated conv: [in][out]
  const float* rho = nullptr;
  float threshold = 0.0f;  // gated conv: winners have saliencies above it
  // Gated conv with levels: rho, bias and gain have a row of C_out values for each; level_edges holds the largest
  // number of winners that each level but the last serves.
  const float* level_bias = nullptr;
  const float* level_gain = nullptr;
  std::vector<std::int32_t> level_edges;
  Summary summary = Summary::l1;
  Function after = Function::none;  // conv with in2: applied after the addition
  float after_slope = 0.0f;
  int chunk = 0;                    // conv with in2: planes computed at a time before they are added
  OpScratch scratch;                // enough for tasks with every channel active
  std::int64_t scratch_offset = 0;  // where the scratch starts in the arena
  int kernel_area = 1;
  bool keeps_list = false;       // conv, depthwise: computes the channels that its input stores
  bool takes_constants = false;  // conv: 1x1, so that a constant at the input is an addition to its bias
  std::vector<float> fill;       // conv that keeps the list: the constant in each channel that is not stored
  Pool pool = Pool::max;
  PoolShape window;
  ConvPlanPtr plan;
  Int8PlanPtr int8;  // conv from codes to codes: stands in place of `plan`
  std::shared_ptr<const ListedPlan> listed;
  std::vector<int> inputs;  // concat; affine of several tensors side by side
  // affine: whether a skipped channel stays zero, so that it can stay skipped.
  bool passes_channels() const { return shift == nullptr && keeps_zero(function); }
};

// Channels that a gated convolution computes at most.
inline int winners_of(const Op& op, int channels, const std::int32_t* winners) {
  return std::min(channels, std::max(1, winners[op.knob]));
}

// k = ceil(d C), at least 1 and at most C. Rounding can leave d C slightly above an integer, which must not add a channel.
inline int winner_count(double density, int channels) {
  constexpr double kRounding = 1e-9;
  return std::clamp(static_cast<int>(std::ceil(density * channels - kRounding * channels)), 1, channels);
}

struct Program {
  std::vector<Tensor> tensors;
  std::vector<Op> ops;
  const float* weights = nullptr;
  std::shared_ptr<const void> weights_owner;
  std::vector<ConvBuffer> rows;    // copies of rows that gates and linear layers read
  std::vector<int> knob_channels;  // C_out of each gated layer
  int layers = 0;
  int input = -1, output = -1;
  int image_reader = -1;  // the one convolution that reads the image bare, where the caller has it; or -1
  // Whether a tensor is the image in the caller's memory.
  bool is_bare(int tensor) const { return tensor == input && image_reader >= 0; }
  std::vector<int> homes;  // the tensor whose memory each tensor uses (place_program)
  std::int64_t arena_floats = 0;
  int max_channels = 0;
  Machine machine;
};

// Throws ProgramError when any number is out of place.
std::unique_ptr<Program> load_program(const RawProgram& raw, const Machine& machine);

// The last operation that needs each tensor.
std::vector<int> find_last_uses(const Program& program);

// Floats in whole cache lines.
inline std::int64_t round_to_line(std::int64_t floats) { return (floats + 15) / 16 * 16; }

// Where a sum, product, affine or concatenation of pixels keeps its factors, its shifts, sums of magnitudes by row, and what its
// channels come from, in floats.
struct PixelScratch {
  std::int64_t factors = 0, shift = 0, sums = 0, first[2] = {}, pieces[2] = {}, total = 0;
};
PixelScratch pixel_scratch(const Tensor& result);
// Floats from one row of sums to the next; vectors may begin at any channel.
inline std::int64_t sums_pitch(int channels) { return round_to_line(channels) + 16; }

// The same for a convolution that adds another map, with a block of pixels of its own result and one of the addend.
struct SumScratch {
  PixelScratch lists;
  std::int64_t own = 0, addend = 0, total = 0;
};
SumScratch sum_scratch(const Tensor& result, int blocks);

// Functions that a clamp expresses.
inline bool is_clamp(Function f) { return f == Function::none || f == Function::relu || f == Function::relu6; }

// The scratch of an operation whose input and result have at most this many active channels.
OpScratch scratch_for(const Op& op, int most_in, int most_out, int threads);

}  // namespace penstock
