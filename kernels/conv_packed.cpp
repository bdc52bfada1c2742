// Planning the packed algorithm: how many pixels a block packs and how many units share it.
#include <algorithm>

#include "conv_plan.h"

namespace penstock {

namespace {

// Floats of packed pixels that stay in a common second-level cache beside the weights that pass by.
constexpr std::int64_t kBlockFloats = 48 << 10;
// Blocks are whole strips, so they may take a little more: this many pixels.
constexpr int kMorePixels = 16;
constexpr int kMinBlockPixels = 32;  // a multiple of every strip
// Units of a layer, about: enough for a few threads. One alone takes the largest blocks that fit, for which weights pass by
// least often.
constexpr int kUnits = 8;

// Active inputs of a group are at most this many; with one group the count is known.
int inputs_of(const ConvPlan& plan, const ConvTask& task) {
  return plan.shape.groups == 1 ? task.in_count : plan.shape.in_channels / plan.shape.groups;
}

int block_pixels(const ConvPlan& plan, const ConvTask& task) {
  const ConvShape& s = plan.shape;
  const int units = task.threads == 1 ? 1 : kUnits;
  const int strip = 2 * plan.kernels->lanes;
  const std::int64_t pixels = std::int64_t{s.output.height} * s.output.width;
  const std::int64_t depth = std::max<std::int64_t>(1, static_cast<std::int64_t>(inputs_of(plan, task)) * plan.taps());
  const std::int64_t fit = std::max<std::int64_t>(
      kMinBlockPixels, std::min<std::int64_t>(kBlockFloats / depth, (pixels + units - 1) / units));
  // Equal blocks.
  const std::int64_t blocks = (pixels + fit - 1) / fit;
  const std::int64_t even = (pixels + blocks - 1) / blocks;
  const std::int64_t most = std::max<std::int64_t>(kMinBlockPixels, kBlockFloats / depth + kMorePixels) / strip * strip;
  return static_cast<int>(std::min((even + strip - 1) / strip * strip, most));
}

int blocks_of(const ConvPlan& plan, int block) {
  return (plan.shape.output.height * plan.shape.output.width + block - 1) / block;
}

// Each split packs the block again, so only small planes (few blocks) with many outputs are split, in two.
int splits_of(const ConvTask& task, int blocks) {
  return task.threads > 1 && blocks < 4 && task.out_count >= 8 * kDirectPanel ? 2 : 1;
}

}  // namespace

void plan_packed(ConvPlan& plan) {
  const ConvShape& s = plan.shape;
  PackedPlan& p = plan.packed;
  const int strip = 2 * plan.kernels->lanes;
  const std::int64_t depth = std::int64_t{s.in_channels / s.groups} * plan.taps();
  // A vector may be written past the last strip.
  p.thread_floats = std::max(kBlockFloats + kMorePixels * depth, kMinBlockPixels * depth) + strip;
}

int packed_units(const ConvPlan& plan, const ConvTask& task) {
  if (task.out_count == 0) return 0;
  const int blocks = blocks_of(plan, block_pixels(plan, task));
  return blocks * (plan.shape.groups == 1 ? splits_of(task, blocks) : plan.shape.groups);
}

void run_packed(const ConvPlan& plan, const ConvTask& task, int unit_begin, int unit_end, const ConvScratch& scratch) {
  const ConvShape& s = plan.shape;
  PackedArgs args;
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
  args.groups = s.groups;
  args.in_group = s.in_channels / s.groups;
  args.out_group = s.out_channels / s.groups;
  args.block_pixels = block_pixels(plan, task);
  args.splits = splits_of(task, blocks_of(plan, args.block_pixels));
  args.far = weights_are_far(plan);
  args.out = conv_output(plan, task);
  args.packed = scratch.thread;
  plan.kernels->packed(args, unit_begin, unit_end);
}

}  // namespace penstock
