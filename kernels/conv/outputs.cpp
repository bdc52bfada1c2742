// Planning the algorithm with outputs in the lanes: how many inputs' weights are turned at a time, and which layers it suits.
#include <algorithm>

#include "conv/plan.h"

namespace penstock {

namespace {

int pixels_of(const ConvPlan& plan) { return plan.shape.output.height * plan.shape.output.width; }

int vectors_of(const ConvPlan& plan, int out_count) { return (out_count + plan.kernels->lanes - 1) / plan.kernels->lanes; }

int chunk_of(const ConvPlan& plan) {
  return std::clamp(plan.tuning().outputs_panel_floats / (plan.taps() * plan.kernels->output_vectors * plan.kernels->lanes), 1,
                    kOutputsChunk);
}

// One output's pixels in whole cache lines, with room for the last vector, which may reach past them.
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

bool fits(const ConvShape& s) { return s.groups == 1; }

bool suits(const ConvPlan& plan) {
  const ConvShape& s = plan.shape;
  const Tuning& t = plan.tuning();
  const int lanes = plan.kernels->lanes, pixels = pixels_of(plan);
  const bool halves = plan.machine.core->wide_in_halves, rows = rows_suit(plan);
  if (!rows && choose_tile(plan) != 0) return false;
  if (s.in_channels < t.outputs_fewest_inputs || s.out_channels < lanes) return false;
  const bool one_tap = plan.taps() == 1 && halves && s.in_channels <= t.outputs_one_tap_inputs;
  if (plan.taps() < t.outputs_fewest_taps && !one_tap) return false;
  if (!one_tap && pixels <= t.outputs_far_pixels && weights_are_far(plan)) return true;
  // Down the rows is as good where a row fills one vector, and better where wide vectors run in halves.
  const bool rows_better = rows && (s.output.width <= lanes || halves);
  return pixels >= t.outputs_fewest_pixels && pixels <= t.outputs_most_pixels && !rows_better;
}

double cost(const ConvPlan& plan, int, int out_count) { return out_count >= plan.kernels->lanes ? 1 : kNever; }

void plan_outputs(ConvPlan& plan, const float*) {
  plan.outputs.thread_floats = panel_floats(plan) + sums_floats(plan) + line_floats(plan) * plan.kernels->lanes;
}

ConvScratchFloats scratch_of(const ConvPlan& plan, int, int) { return {0, plan.outputs.thread_floats, 0}; }

// The outputs are divided into about equal parts. With several threads the number of parts is even, so that two threads finish together.
int units(const ConvPlan& plan, const ConvTask& task, int) {
  const int vectors = vectors_of(plan, task.out_count), most = plan.kernels->output_vectors;
  const int parts = (vectors + most - 1) / most;
  return task.threads > 1 && parts % 2 == 1 && parts < vectors ? parts + 1 : parts;
}

void run_outputs(const ConvPlan& plan, const ConvTask& task, int, int unit_begin, int unit_end, const ConvScratch& scratch) {
  const ConvShape& s = plan.shape;
  OutputsArgs args;
  static_cast<InPlaceArgs&>(args) = args_in_place(plan, task);
  args.in_channels = s.in_channels;
  args.units = units(plan, task, 0);
  args.chunk = chunk_of(plan);
  args.fetches_many = plan.machine.fetches_many();
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

bool fetches_later(const ConvPlan&) { return true; }

}  // namespace

// Pixels are read in place, with outputs in the lanes.
const ConvAlgorithm kOutputs = {{"outputs", Element::float32, "one group"},
                                fits,
                                suits,
                                cost,
                                plan_outputs,
                                scratch_of,
                                one_stage,
                                units,
                                run_outputs,
                                nullptr,
                                fetches_later};

}  // namespace penstock
