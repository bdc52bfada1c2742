// A compiled network as plain numbers, and the check that every one of them makes sense.
//
// A program arrives as arrays (RawProgram): a table of tensors, a table of operations, float parameters of the
// operations, lists of arguments, and one buffer of weights. load_program() reads it into typed records, or
// refuses it with a message. After that the runtime trusts every size, index and offset.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "conv.h"
#include "conv_buffer.h"
#include "ops.h"
#include "planes.h"

namespace penstock {

constexpr std::int64_t kFormat = 2;
constexpr int kTensorFields = 6;
constexpr int kOpFields = 24;
constexpr int kOpScalars = 2;

struct ProgramError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// tensors: kind, channels, height, width, halo, offset (floats from the arena's start)
// ops:     kind, in, in2, out, function, layer, knob, then 17 fields that depend on the kind (see program.cpp)
// scalars: slope of leaky_relu; eps, or the slope after the addition
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
  std::int64_t layers = 0;  // layers that are counted
  std::int64_t knobs = 0;   // gated layers
};

enum class TensorKind : int { planes = 0, vector = 1 };

// A vector has one value a channel; it lies packed in the order of its channel list.
struct Tensor {
  TensorKind kind;
  int channels;
  Planes shape;
  std::int64_t offset;
  std::int64_t step() const { return kind == TensorKind::vector ? 1 : shape.stride(); }
  std::int64_t floats() const { return step() * channels; }
};

enum class OpKind : int {
  import_image = 0, export_result = 1, conv = 2, pool = 3, adaptive_pool = 4, add = 5, concat = 6, affine = 7,
  scale = 8, linear = 9, pack = 10, channel_norm = 11,
};
constexpr int kOpKinds = 12;

// Memory of an operation besides its tensors, in floats: shared by all threads, then so much for each of them, then the chunk.
struct OpScratch {
  std::int64_t shared = 0, thread = 0, chunk = 0;
  std::int64_t total(int threads) const { return shared + threads * thread + chunk; }
};

struct Op {
  OpKind kind;
  int in = -1, in2 = -1, out = -1;
  Function function = Function::none;
  float slope = 0.0f, eps = 0.0f;
  int layer = -1, knob = -1;
  const float* scale = nullptr;    // affine, channel_norm: a value a channel
  const float* shift = nullptr;
  const float* weights = nullptr;  // linear: [in][out] for a vector, [out][in] for planes
  const float* bias = nullptr;
  const float* phi = nullptr;      // gated conv: [in][out]
  const float* rho = nullptr;
  // Gated conv with levels: rho, bias and gain have a row of C_out values for each; level_edges holds the largest
  // number of winners that each level but the last serves.
  const float* level_bias = nullptr;
  const float* level_gain = nullptr;
  std::vector<std::int32_t> level_edges;
  Summary summary = Summary::l1;
  Function after = Function::none;  // conv with in2: applied after the addition
  float after_slope = 0.0f;
  int chunk = 0;                    // conv with in2: planes computed at a time before they are added
  OpScratch scratch;                  // for all channels
  std::int64_t scratch_offset = 0;  // where it starts in the arena
  int kernel_area = 1;
  Pool pool = Pool::max;
  PoolShape window{};
  ConvPlanPtr plan;
  std::vector<int> inputs;  // concat
  // affine: whether a channel that is skipped stays zero, and skipped.
  bool passes_channels() const { return shift == nullptr && keeps_zero(function); }
};

// Channels that a gated convolution computes at most.
inline int winners_of(const Op& op, int channels, const std::int32_t* winners) {
  return std::min(channels, std::max(1, winners[op.knob]));
}

struct Program {
  std::vector<Tensor> tensors;
  std::vector<Op> ops;
  ConvBuffer weights;
  std::vector<int> knob_channels;  // C_out of each gated layer
  int layers = 0;
  int input = -1, output = -1;
  int image_reader = -1;  // the one convolution that reads the image bare, where the caller has it; or -1
  std::int64_t arena_floats = 0;
  int max_channels = 0;
  Isa isa = Isa::baseline;
};

// Throws ProgramError when any number is out of place.
std::unique_ptr<Program> load_program(const RawProgram& raw, Isa isa);

// The first and the last operation that need each tensor.
struct Lives {
  std::vector<int> born, last;
  bool needs(std::size_t tensor, int op) const { return born[tensor] <= op && op <= last[tensor]; }
};
Lives find_lives(const Program& program);

// Floats in whole cache lines.
inline std::int64_t round_to_line(std::int64_t floats) { return (floats + 15) / 16 * 16; }

// What an operation needs when its input and its result have at most so many channels.
OpScratch scratch_for(const Op& op, int most_in, int most_out);

// Gives every operation room for its scratch on so many threads, where no tensor lies that is needed at that time;
// the arena grows only where there is no such room.
void place_scratch(Program& program, int threads);

}  // namespace penstock
