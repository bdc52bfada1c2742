// Planning the packed algorithm: how many pixels a block packs and how many units share it.
#include <algorithm>

#include "conv/plan.h"

namespace penstock {

namespace {

// An upper bound of the active inputs in a group; with one group it is their number.
int inputs_of(const ConvPlan& plan, const ConvTask& task) {
  return plan.shape.groups == 1 ? task.in_count : plan.shape.in_channels / plan.shape.groups;
}

int block_pixels(const ConvPlan& plan, const ConvTask& task) {
  const ConvShape& s = plan.shape;
  const Tuning& t = plan.tuning();
  const int units = task.threads == 1 ? 1 : plan.tuning().packed_units;
  const int strip = 2 * plan.kernels->lanes;
  const std::int64_t pixels = std::int64_t{s.output.height} * s.output.width;
  const std::int64_t depth = std::max<std::int64_t>(1, static_cast<std::int64_t>(inputs_of(plan, task)) * plan.taps());
  const std::int64_t fit = std::max<std::int64_t>(
      t.packed_fewest_pixels, std::min<std::int64_t>(t.packed_block_floats / depth, (pixels + units - 1) / units));
  // Blocks of about the same size: a small last block would waste its share of the packing.
  const std::int64_t blocks = (pixels + fit - 1) / fit;
  const std::int64_t even = (pixels + blocks - 1) / blocks;
  const std::int64_t most =
      std::max<std::int64_t>(t.packed_fewest_pixels, t.packed_block_floats / depth + t.packed_more_pixels) / strip * strip;
  return static_cast<int>(std::min((even + strip - 1) / strip * strip, most));
}

int blocks_of(const ConvPlan& plan, int block) { return (plan.shape.output.height * plan.shape.output.width + block - 1) / block; }

// Each split packs the block again, so only small planes (few blocks) with many outputs are split, in two.
int splits_of(const ConvPlan& plan, const ConvTask& task, int blocks) {
  const Tuning& t = plan.tuning();
  return task.threads > 1 && blocks < t.packed_split_blocks && task.out_count >= t.packed_split_outputs ? 2 : 1;
}

// Layers that Winograd takes are not packed. Where it fits but does not pay, there are too few channels for packing to pay either.
bool suits(const ConvPlan& plan) { return !rows_suit(plan) && choose_tile(plan) == 0; }

double cost(const ConvPlan&, int, int) { return 5; }

void plan_packed(ConvPlan& plan, const float*) {
  const ConvShape& s = plan.shape;
  const Tuning& t = plan.tuning();
  PackedPlan& p = plan.packed;
  const int strip = 2 * plan.kernels->lanes;
  const std::int64_t depth = std::int64_t{s.in_channels / s.groups} * plan.taps();
  // A vector may be written past the last strip.
  p.thread_floats = std::max(t.packed_block_floats + t.packed_more_pixels * depth, t.packed_fewest_pixels * depth) + strip;
}

ConvScratchFloats scratch_of(const ConvPlan& plan, int, int) { return {0, plan.packed.thread_floats, 0}; }

int units(const ConvPlan& plan, const ConvTask& task, int) {
  if (task.out_count == 0) return 0;
  const int blocks = blocks_of(plan, block_pixels(plan, task));
  return blocks * (plan.shape.groups == 1 ? splits_of(plan, task, blocks) : plan.shape.groups);
}

void run_packed(const ConvPlan& plan, const ConvTask& task, int, int unit_begin, int unit_end, const ConvScratch& scratch) {
  const ConvShape& s = plan.shape;
  PackedArgs args;
  static_cast<InPlaceArgs&>(args) = args_in_place(plan, task);
  args.groups = s.groups;
  args.in_group = s.in_channels / s.groups;
  args.out_group = s.out_channels / s.groups;
  args.block_pixels = block_pixels(plan, task);
  args.splits = splits_of(plan, task, blocks_of(plan, args.block_pixels));
  args.far = weights_are_far(plan);
  args.out = conv_output(plan, task);
  args.packed = scratch.thread;
  plan.kernels->packed(args, unit_begin, unit_end);
}

}  // namespace

// Pixels are copied tap by tap, then a matrix product; any shape.
const ConvAlgorithm kPacked = {{"packed", Element::float32, "any shape"},
                               fits_any,
                               suits,
                               cost,
                               plan_packed,
                               scratch_of,
                               one_stage,
                               units,
                               run_packed,
                               nullptr,
                               nullptr};

}  // namespace penstock
