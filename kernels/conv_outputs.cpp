// Planning the algorithm with outputs in the lanes: how many inputs' weights are turned at a time, and which layers it suits.
#include <algorithm>

#include "conv_plan.h"

namespace penstock {

namespace {

// Turned weights of a chunk stay in the first-level cache.
constexpr int kPanelFloats = 6912;
// Planes of at most so many pixels with weights from afar, of which packing reads a few at a time: more pixels repay that.
constexpr int kMostFarPixels = 256;
// Planes of so many pixels with AVX-512, of which turning costs little and packing much. (With AVX2 the product takes twice as
// long, and packing is as good.)
constexpr int kFewestWidePixels = 65, kMostWidePixels = 1024;
// Turning weights is repaid by kernels of several taps only; where wide vectors run in halves also by one tap, unless inputs are so many
// that sums come and go.
constexpr int kFewestTaps = 4, kMostInputsOfOneTap = 512;
// Images, with few channels, have algorithms of their own.
constexpr int kFewestInputs = 16;

int pixels_of(const ConvPlan& plan) { return plan.shape.output.height * plan.shape.output.width; }

int vectors_of(const ConvPlan& plan, int out_count) { return (out_count + plan.kernels->lanes - 1) / plan.kernels->lanes; }

int chunk_of(const ConvPlan& plan) {
  return std::clamp(kPanelFloats / (plan.taps() * plan.kernels->output_vectors * plan.kernels->lanes), 1, kOutputsChunk);
}

// A vector more than the pixels, which rows are read by; whole cache lines.
std::size_t line_floats(const ConvPlan& plan) {
  return (static_cast<std::size_t>(pixels_of(plan)) + 3 + plan.kernels->lanes + 15) / 16 * 16;
}

std::size_t panel_floats(const ConvPlan& plan) {
  return static_cast<std::size_t>(chunk_of(plan)) * plan.taps() * plan.kernels->output_vectors * plan.kernels->lanes;
}

// Pixels are read four at a time.
std::size_t sums_floats(const ConvPlan& plan) {
  return (static_cast<std::size_t>(pixels_of(plan)) + 3) * plan.kernels->output_vectors * plan.kernels->lanes;
}

}  // namespace

bool outputs_fit(const ConvShape& s) { return s.groups == 1; }

bool outputs_suit(const ConvPlan& plan) {
  const ConvShape& s = plan.shape;
  const int lanes = plan.kernels->lanes, pixels = pixels_of(plan);
  if (!outputs_fit(s) || s.in_channels < kFewestInputs || s.out_channels < lanes) return false;
  const bool one_tap = plan.taps() == 1 && plan.wide_in_halves && s.in_channels <= kMostInputsOfOneTap;
  if (plan.taps() < kFewestTaps && !one_tap) return false;
  if (!one_tap && pixels <= kMostFarPixels && weights_are_far(plan)) return true;
  // Down the rows is as good where a row fills one vector, and better where wide vectors run in halves.
  const bool rows_better = plan.rows.used && (s.output.width <= lanes || plan.wide_in_halves);
  return lanes == 16 && pixels >= kFewestWidePixels && pixels <= kMostWidePixels && !rows_better;
}

void plan_outputs(ConvPlan& plan) {
  plan.outputs.used = true;
  plan.outputs.thread_floats = panel_floats(plan) + sums_floats(plan) + line_floats(plan) * plan.kernels->lanes;
}

// Parts of the outputs, about equal, an even number where threads share them.
int outputs_units(const ConvPlan& plan, const ConvTask& task) {
  const int vectors = vectors_of(plan, task.out_count), most = plan.kernels->output_vectors;
  const int parts = (vectors + most - 1) / most;
  return task.threads > 1 && parts % 2 == 1 && parts < vectors ? parts + 1 : parts;
}

void run_outputs(const ConvPlan& plan, const ConvTask& task, int unit_begin, int unit_end, const ConvScratch& scratch) {
  const ConvShape& s = plan.shape;
  OutputsArgs args;
  args.input = task.input;
  args.in_stride = s.input.stride();
  args.in_pitch = s.input.pitch();
  args.stride_h = s.stride_h;
  args.stride_w = s.stride_w;
  args.taps = plan.taps_in_place.data();
  args.tap_count = plan.taps();
  args.weights = plan.weights.data();
  args.in_list = task.in_list;
  args.in_count = task.in_count;
  args.in_channels = s.in_channels;
  args.units = outputs_units(plan, task);
  args.chunk = chunk_of(plan);
  args.fetches_many = plan.fetches_many;
  args.out = conv_output(plan, task);
  args.panel = scratch.thread;
  args.sums = args.panel + panel_floats(plan);
  args.lines = args.sums + sums_floats(plan);
  args.line_floats = static_cast<std::ptrdiff_t>(line_floats(plan));
  for (int unit = unit_begin; unit < unit_end; ++unit) {
    args.later = later_rows(task, unit, args.units);
    plan.kernels->outputs(args, unit, unit + 1);
  }
}

}  // namespace penstock
