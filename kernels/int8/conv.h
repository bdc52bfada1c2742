// Convolution of quantised maps with channel lists: the interface. docs/int8.md has the arithmetic.
//
// Weights are int8, one scale for each output channel. An image's task names its active inputs and outputs; skipped ones
// are neither read nor written. Every algorithm and every instruction set computes the same bits.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "conv/algorithm.h"
#include "conv/sizes.h"
#include "int8/pixels.h"
#include "machine/cpu.h"
#include "ops/ops.h"

namespace penstock {

struct Int8Shape : ConvSizes {
  Quantised in, out;
  Function function = Function::none;
  float slope = 0.0f;
};

struct Int8Plan;
struct Int8Run;
struct Int8Scratch;
class Int8Room;

// One way to compute a convolution of codes: a row of the list in conv/algorithms.cpp. A task has two stages. The first gathers the
// weights of the active channels, unless the task skips nothing and the plan keeps them packed; the second multiplies.
struct Int8Algorithm : Algorithm {
  static constexpr Element kElement = Element::code8;
  // Whether it can compute the layer, and whether automatic planning makes it ready if it can.
  bool (*fits)(const Int8Plan& plan);
  bool (*suits)(const Int8Plan& plan);
  // The cost of one image with these active channels, relative to the other ready algorithms.
  double (*cost)(const Int8Plan& plan, int in_count, int out_count);
  // Bytes of one group's gathered weights, for these numbers of active inputs and of vectors of outputs.
  std::size_t (*weight_bytes)(const Int8Plan& plan, int in_count, int vectors);
  // Scratch of one thread, and the units of the second stage. `most_thread_bytes` also serves tasks with fewer channels.
  void (*lay_out)(const Int8Plan& plan, int in_count, int out_count, int threads, Int8Room& room, Int8Scratch& lay);
  std::size_t (*most_thread_bytes)(const Int8Plan& plan, const Int8Scratch& lay);
  // The first stage: its units, and one of them.
  int (*gather_units)(const Int8Run& run);
  void (*gather)(const Int8Run& run, int unit, int member, std::uint8_t* to);
  // One unit of the second stage.
  void (*run)(const Int8Run& run, int unit, int member);
  // Whether vectors of outputs hold channels of several groups. If not, each group begins a vector of its own.
  bool mixes_groups = false;
  // Whether so few pixels use a weight that writing and reading gathered weights outweighs multiplying; null: never.
  bool (*few_users)(const Int8Plan& plan) = nullptr;
  // Whether a task on one thread gathers its weights panel by panel (Int8Kernels::gather_panel), given whether the plan has them
  // packed; null: never.
  bool (*by_panels)(const Int8Plan& plan, int in_count, int out_count, bool packed) = nullptr;
};
extern const Int8Algorithm kInt8Direct, kInt8Winograd, kInt8Depthwise;

struct FreeInt8Plan {
  void operator()(Int8Plan* plan) const;
};
using Int8PlanPtr = std::unique_ptr<Int8Plan, FreeInt8Plan>;

// weights [out][in / groups][kh][kw]; scales: what one unit of each output's sum stands for, input scale included; bias
// (may be null) in real numbers. `algorithm` is the one to use, or null for those that suit. Null, and why, if the shape makes no
// sense, the algorithm does not fit it, or a sum could pass 2^31.
Int8PlanPtr plan_int8(const Int8Shape& shape, const std::int8_t* weights, const float* scales, const float* bias, Isa isa,
                      const Int8Algorithm* algorithm, std::string& why);

// Rows that a later operation will read, `bytes` long and `bytes` apart: those in the list, or the first `count` if it is null.
struct Int8Fetch {
  const std::uint8_t* rows = nullptr;
  std::ptrdiff_t bytes = 0;
  const std::int32_t* list = nullptr;
  int count = 0;
};

struct Int8Task {
  const std::uint8_t* input = nullptr;
  const std::int32_t* in_list = nullptr;  // strictly increasing, as out_list is
  int in_count = 0;
  std::uint8_t* output = nullptr;
  const std::int32_t* out_list = nullptr;
  int out_count = 0;
  const float* gain = nullptr;  // of each output in the list, or null
  const float* bias = nullptr;  // of each output channel, instead of the plan's
  int threads = 1;
  std::int32_t* sums = nullptr;      // receives the sum of |q - zero| of each output in the list; may be null
  const Int8Fetch* later = nullptr;  // fetched while this task multiplies
  int later_count = 0;
  // For 1x1 kernels only, may be null: by input channel, q - zero of the constant in a channel that the list leaves out.
  const float* constants = nullptr;
  const Int8Algorithm* algorithm = nullptr;  // set by decide_int8
};

// Bytes of scratch for tasks with at most these numbers of active channels.
std::size_t int8_scratch(const Int8Plan& plan, int in_count, int out_count, int threads);

// A task is run by these calls in this order. decide_int8 takes the cheapest ready algorithm for the task's numbers of active
// channels. begin_int8 follows, then run_int8 for all units of each stage (units of one stage in any order, on any thread), then
// end_int8. `scratch` is 64-byte aligned and the same throughout.
void decide_int8(const Int8Plan& plan, Int8Task& task);
void begin_int8(const Int8Plan& plan, const Int8Task& task, std::uint8_t* scratch);
int int8_stages(const Int8Plan& plan, const Int8Task& task);
int int8_units(const Int8Plan& plan, const Int8Task& task, int stage);
void run_int8(const Int8Plan& plan, const Int8Task& task, int stage, int begin, int end, int member, std::uint8_t* scratch);
void end_int8(const Int8Plan& plan, const Int8Task& task, std::uint8_t* scratch);

// Multiply-accumulates of a task: active inputs of each active output's group, kernel size, output size.
std::int64_t int8_macs(const Int8Plan& plan, const Int8Task& task);
// What a task will read of the plan's weights, so that the one before it may fetch it: a row for each input (the list is the
// caller's to set), or the beginning of what is kept for tasks that skip nothing.
Int8Fetch int8_rows(const Int8Plan& plan, bool skips_nothing);
std::int64_t int8_plan_bytes(const Int8Plan& plan);
// Whether a plan's weights are too large to stay in the caches from image to image.
bool int8_is_far(const Int8Plan& plan);

}  // namespace penstock
