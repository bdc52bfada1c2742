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

#include "int8/pixels.h"
#include "machine/cpu.h"
#include "ops/ops.h"

namespace penstock {

struct Int8Shape {
  int in_channels = 0, out_channels = 0;
  int kernel_h = 1, kernel_w = 1, stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0, dilation_h = 1, dilation_w = 1;
  int groups = 1;
  Planes input, output;
  Quantised in, out;
  Function function = Function::none;
  float slope = 0.0f;
};

enum class Int8Algorithm : int { automatic = 0, direct = 1, winograd = 2, depthwise = 3 };

struct Int8Plan;
struct FreeInt8Plan {
  void operator()(Int8Plan* plan) const;
};
using Int8PlanPtr = std::unique_ptr<Int8Plan, FreeInt8Plan>;

// weights [out][in / groups][kh][kw]; scales: what one unit of each output's sum stands for, input scale included; bias
// (may be null) in real numbers. Null, and why, if the shape makes no sense or a sum could pass 2^31.
Int8PlanPtr plan_int8(const Int8Shape& shape, const std::int8_t* weights, const float* scales, const float* bias, Isa isa,
                      Int8Algorithm algorithm, std::string& why);

// Rows that somebody will read later, `bytes` each and as far apart: those in the list, or the first `count` if there is none.
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
};

// Bytes of scratch for at most so many active channels.
std::size_t int8_scratch(const Int8Plan& plan, int in_count, int out_count, int threads);
Int8Algorithm int8_algorithm(const Int8Plan& plan, int in_count, int out_count);
const char* int8_algorithm_name(Int8Algorithm algorithm);

// In this order: begin, every unit of each stage (units of one stage in any order, on any thread), end.
// `scratch` is 64-byte aligned and the same throughout.
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

}  // namespace penstock
