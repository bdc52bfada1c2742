// Convolution with per-image channel lists: the one door to the convolution kernels.
//
// A layer is planned once (plan_conv): arguments are checked, and the algorithms that suit the shape are made ready, weights
// transformed if they need that. Then every image is a ConvTask: the planes of the channels that are active at the
// input, and the planes to fill for the channels that are active at the output. Nothing is computed, stored or
// read for a channel that is in neither list. From the numbers of active channels `decide_conv` takes one of the ready
// algorithms, once for each task.
//
//     output[o] = activation(gain[o] * (sum over active inputs i, taps of weight[o][i][tap] * input[i] + bias[o]))
//
// A task runs as stages; a stage is a number of independent units. Units of one stage may run on any thread in
// any order, and all units of a stage must be done before the next stage starts. With more threads the units are smaller, but
// each output value is summed in the same order, so results are equal bit for bit.
//
// Files for wider instruction sets switch their own target on; do not pass -march flags.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "conv/algorithm.h"
#include "conv/sizes.h"
#include "machine/machine.h"
#include "run/schema.h"

namespace penstock {

struct ConvAlgorithm;
struct ConvPlan;

struct ConvShape : ConvSizes {
  Element element = Element::float32;
  // Layout::planes or Layout::pixels (run/pixels.h). Results in planes come from planes.
  Layout in_layout = Layout::planes, out_layout = Layout::planes;
  Activation activation = Activation::none;
  float leaky_slope = 0.01f;  // for leaky_relu
  // Of pixels: another map is added to the result, block by block of pixels (lanes/lanes.h).
  bool adds = false;
};

// Depthwise convolutions of pixels look where the map ends; others read zeros beyond it.
inline bool conv_needs_no_halo(const ConvShape& s) {
  return s.in_layout == Layout::pixels && s.groups > 1 && s.groups == s.in_channels && s.groups == s.out_channels;
}

constexpr int kMostLaterFloats = 1024;  // the most of a row of ConvTask::later that is prefetched

// One image's work. Lists are strictly increasing; plane p of `input` holds channel in_list[p], plane p of
// `output` receives channel out_list[p]. Planes lie Planes::stride() floats apart. Maps of pixels hold the same channels in
// the same order. Input and output must not overlap.
struct ConvTask {
  const float* input = nullptr;
  const std::int32_t* in_list = nullptr;
  int in_count = 0;
  float* output = nullptr;
  const std::int32_t* out_list = nullptr;
  int out_count = 0;
  const float* gain = nullptr;               // out_count values, gain[p] belongs to out_list[p]; null means 1
  const float* bias = nullptr;               // by channel; replaces the plan's bias unless it is null
  int threads = 1;                           // how many threads share the units
  Layout input_layout = Layout::planes;      // or Layout::bare (see conv_takes_bare)
  const ConvAlgorithm* algorithm = nullptr;  // set by decide_conv
  // Memory that nobody needs while the task runs, 64-byte aligned: more room for weights that are transformed for the image.
  float* spare = nullptr;
  std::size_t spare_floats = 0;
  // Rows of weights that the next gate or linear layer will read, `later_floats` of each. Algorithms that can prefetch them evenly
  // do so (fetches_later).
  const float* const* later = nullptr;
  int later_count = 0, later_floats = 0;
  // Results in pixels: the sum of each output's magnitudes goes here, in the order of the list. Null: nobody asks.
  float* sums = nullptr;
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

// One way to compute a convolution of floats. The list of them is conv/algorithms.cpp.
struct ConvAlgorithm : Algorithm {
  static constexpr Element kElement = Element::float32;
  bool (*fits)(const ConvShape& shape);
  // Whether automatic planning makes it ready.
  bool (*suits)(const ConvPlan& plan);
  // The cost of one image with these active channels, relative to the other ready algorithms; kNever rules the algorithm out.
  double (*cost)(const ConvPlan& plan, int in_count, int out_count);
  // Transforms weights and sizes blocks, into the algorithm's own part of the plan.
  void (*plan)(ConvPlan& plan, const float* weights);
  ConvScratchFloats (*scratch)(const ConvPlan& plan, int most_in, int most_out);
  int (*stages)(const ConvPlan& plan, const ConvTask& task);
  int (*units)(const ConvPlan& plan, const ConvTask& task, int stage);
  // Runs units [unit_begin, unit_end) of one stage. The padding of every output plane is exactly zero afterwards.
  void (*run)(const ConvPlan& plan, const ConvTask& task, int stage, int unit_begin, int unit_end, const ConvScratch& scratch);
  // Whether tasks may give the input bare, and whether they fetch the rows of `later`. Null: no.
  bool (*takes_bare)(const ConvPlan& plan);
  bool (*fetches_later)(const ConvPlan& plan);
  // Planning may leave some weights untransformed until a task reads them. This transforms what the task reads, if no task before it
  // has. Null: planning leaves nothing.
  void (*complete)(const ConvPlan& plan, const ConvTask& task) = nullptr;
  Layout layout = Layout::planes;  // of its results
};

struct ConvPlanDelete {  // plans look immutable: any number of threads may run tasks of one
  void operator()(ConvPlan* plan) const;
};
using ConvPlanPtr = std::unique_ptr<ConvPlan, ConvPlanDelete>;

// Plans one layer. `weights` is [out][in / groups][kernel_h][kernel_w] with the norm folded in, `bias` is [out] or
// null. The weights must outlive the plan, which may read them where they lie. `algorithm` is the one to use, or null for those that
// suit. Returns null and says why in `error` when an argument is refused.
ConvPlanPtr plan_conv(const ConvShape& shape, const float* weights, const float* bias, const Machine& machine,
                      const ConvAlgorithm* algorithm, std::string& error);

// The scratch that tasks with at most these numbers of active channels need.
ConvScratchFloats conv_scratch(const ConvPlan& plan, int most_in, int most_out);

// Takes the cheapest ready algorithm for the task's numbers of active channels, and completes the plan for it. Before anything else
// is asked of a task.
void decide_conv(const ConvPlan& plan, ConvTask& task);

// Multiply-accumulates that the task's lists ask for, counted as a direct convolution does it: the sum over pairs
// of active output and active input of the same group, times kernel size, times output size.
std::int64_t conv_macs(const ConvPlan& plan, const ConvTask& task);

std::int64_t conv_weights(const ConvPlan& plan);  // floats of its filters

// Whether tasks may give the input as an image comes: planes of height times width floats without margins, one after the
// other, of which every row is read and nothing before or after them.
bool conv_takes_bare(const ConvPlan& plan);

// Whether its tasks fetch the rows of `later`.
bool conv_fetches_later(const ConvPlan& plan);

inline int conv_stages(const ConvPlan& plan, const ConvTask& task) { return task.algorithm->stages(plan, task); }
inline int conv_units(const ConvPlan& plan, const ConvTask& task, int stage) { return task.algorithm->units(plan, task, stage); }
inline void run_conv(const ConvPlan& plan, const ConvTask& task, int stage, int unit_begin, int unit_end,
                     const ConvScratch& scratch) {
  task.algorithm->run(plan, task, stage, unit_begin, unit_end, scratch);
}

}  // namespace penstock
