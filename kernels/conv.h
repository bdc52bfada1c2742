// Convolution with per-image channel lists: the one door to the convolution kernels.
//
// A layer is planned once (plan_conv): arguments are checked, an algorithm is chosen from the shape, weights are
// transformed if it needs that. Then every image is a ConvTask: the planes of the channels that are active at the
// input, and the planes to fill for the channels that are active at the output. Nothing is computed, stored or
// read for a channel that is in neither list.
//
//     output[o] = activation(gain[o] * (sum over active inputs i, taps of weight[o][i][tap] * input[i] + bias[o]))
//
// A task runs as stages; a stage is a number of independent units. Units of one stage may run on any thread in
// any order, and all units of a stage must be done before the next stage starts. How units are cut depends on the
// plan and the task only, never on the threads, so results are bit-identical for every split.
//
// Building: compile cpu.cpp and every conv*.cpp of this folder with the same flags (-O2 or -O3, C++17). Files for
// wider instruction sets switch their own target on; do not pass -march flags.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "cpu.h"
#include "planes.h"

namespace penstock {

enum class Activation : int { none, relu, relu6, silu, gelu, hardswish, leaky_relu };

constexpr int kActivationCount = 7;

enum class ConvAlgorithm : int {
  automatic,  // from the shape, and for each image from its number of active channels
  direct,     // pixels read in place; any shape
  packed,     // pixels copied tap by tap, then a matrix product; any shape
  winograd2,  // F(2x2, 3x3): 3x3, stride 1, dilation 1, groups 1
  winograd4,  // F(4x4, 3x3): the same shapes
  winograd_rows,  // down the rows only: 3x3 with stride 1 or 7x7 with stride 2, dilation 1, groups 1
  outputs,    // pixels read in place, outputs in the lanes; groups 1
};

struct ConvShape {
  int in_channels = 0;
  int out_channels = 0;
  int kernel_h = 1, kernel_w = 1;
  int stride_h = 1, stride_w = 1;
  int pad_h = 0, pad_w = 0;  // zeros on each side
  int dilation_h = 1, dilation_w = 1;
  int groups = 1;
  Planes input;   // its halo must be at least the padding
  Planes output;  // height and width must be what the convolution yields; the halo is whatever readers need
  Activation activation = Activation::none;
  float leaky_slope = 0.01f;  // for leaky_relu
};

// Output size of a convolution along one axis; 0 or less when the kernel does not fit.
constexpr int conv_output_size(int size, int kernel, int stride, int pad, int dilation) {
  const int reach = size + 2 * pad - dilation * (kernel - 1) - 1;
  return reach < 0 ? 0 : reach / stride + 1;
}

constexpr int kMostLaterFloats = 1024;  // of a row that is fetched for whoever comes next

// One image's work. Lists are strictly increasing; plane p of `input` holds channel in_list[p], plane p of
// `output` receives channel out_list[p]. Planes lie Planes::stride() floats apart. Input and output must not overlap.
struct ConvTask {
  const float* input = nullptr;
  const std::int32_t* in_list = nullptr;
  int in_count = 0;
  float* output = nullptr;
  const std::int32_t* out_list = nullptr;
  int out_count = 0;
  const float* gain = nullptr;  // out_count values, gain[p] belongs to out_list[p]; null means 1
  const float* bias = nullptr;  // by channel, in the place of the plan's; null means that
  int threads = 1;  // that will share the units: more threads, smaller units, the same results
  bool bare = false;  // the input is bare (see conv_takes_bare)
  // Memory that nobody needs while the task runs, 64-byte aligned: more room for weights that are transformed for the image.
  float* spare = nullptr;
  std::size_t spare_floats = 0;
  // Rows of weights that whoever comes next will read, so many floats of each. They are fetched meanwhile where that can be done
  // evenly.
  const float* const* later = nullptr;
  int later_count = 0, later_floats = 0;
};

// Memory that one running task needs besides its planes, both 64-byte aligned, contents undefined before and after.
struct ConvScratch {
  float* shared = nullptr;  // the same for all units of the task
  float* thread = nullptr;  // not shared between units that run at the same time
};
struct ConvScratchFloats {
  std::size_t shared = 0, thread = 0;
  std::size_t spare = 0;  // of ConvTask::spare, used at most
};

struct ConvPlan;  // immutable after planning: any number of threads may run tasks of one plan
struct ConvPlanDelete {
  void operator()(ConvPlan* plan) const;
};
using ConvPlanPtr = std::unique_ptr<ConvPlan, ConvPlanDelete>;

// Plans one layer. `weights` is [out][in / groups][kernel_h][kernel_w] with the norm folded in, `bias` is [out] or
// null; both are copied. Returns null and says why in `error` when an argument is refused.
ConvPlanPtr plan_conv(const ConvShape& shape, const float* weights, const float* bias, Isa isa,
                      ConvAlgorithm algorithm, std::string& error);

// For tasks with at most so many active channels.
ConvScratchFloats conv_scratch(const ConvPlan& plan, int most_in, int most_out);

// The algorithm that this plan uses at these active counts, for reports.
ConvAlgorithm conv_algorithm(const ConvPlan& plan, int in_count, int out_count);

// Multiply-accumulates that the task's lists ask for, counted as a direct convolution does it: the sum over pairs
// of active output and active input of the same group, times kernel size, times output size.
std::int64_t conv_macs(const ConvPlan& plan, const ConvTask& task);

std::int64_t conv_weights(const ConvPlan& plan);  // floats of its filters

// Whether tasks may give the input as an image comes: planes of height times width floats without margins, one after the
// other, of which every row is read and nothing before or after them.
bool conv_takes_bare(const ConvPlan& plan);

// Whether its tasks fetch the rows of `later`.
bool conv_fetches_later(const ConvPlan& plan);

int conv_stages(const ConvPlan& plan, const ConvTask& task);
int conv_units(const ConvPlan& plan, const ConvTask& task, int stage);

// Runs units [unit_begin, unit_end) of one stage. The padding of every output plane is exactly zero afterwards.
void run_conv(const ConvPlan& plan, const ConvTask& task, int stage, int unit_begin, int unit_end,
              const ConvScratch& scratch);

}  // namespace penstock
