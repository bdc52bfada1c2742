// Which algorithm a layer uses, from its shape and the number of active channels.
//
// Thresholds are measured (bench/conv_bench.cpp; README.md has the numbers). They depend on nothing but their
// arguments, so that a network gives the same results on every run.
#include "conv_plan.h"

namespace penstock {

namespace {

// Below this many active channels on either side, transforms cost more than Winograd saves.
constexpr int kWinogradChannels = 5;
// Packing is repaid by the outputs that read what was packed.
constexpr int kPackedOutputs = 12;
// Up to this many inputs (images, mostly), packing copies more than the product reads.
constexpr int kImageChannels = 4;

}  // namespace

int choose_tile(const ConvPlan& plan) {
  const ConvShape& s = plan.shape;
  if (!winograd_fits(s) || s.in_channels < kWinogradChannels || s.out_channels < kWinogradChannels) return 0;
  // On planes of 8x8 and smaller the larger tile saves nothing and is less exact.
  return s.output.height <= 8 && s.output.width <= 8 ? 2 : 4;
}

ConvAlgorithm choose_algorithm(const ConvPlan& plan, int in_count, int out_count) {
  const ConvShape& s = plan.shape;
  if (plan.outputs.used && out_count >= plan.kernels->lanes) return ConvAlgorithm::outputs;
  if (plan.rows.used) return ConvAlgorithm::winograd_rows;
  if (plan.winograd.tile != 0 && in_count >= kWinogradChannels && out_count >= kWinogradChannels) {
    return plan.winograd.tile == 2 ? ConvAlgorithm::winograd2 : ConvAlgorithm::winograd4;
  }
  if (!direct_suits(s)) return ConvAlgorithm::packed;
  const bool few = in_count <= kImageChannels || out_count < kPackedOutputs;
  return plan.winograd.tile != 0 || s.groups > 1 || few ? ConvAlgorithm::direct : ConvAlgorithm::packed;
}

}  // namespace penstock
