// Planning the direct convolution on maps of pixels.
#include <algorithm>
#include <cstring>

#include "lanes/lanes.h"
#include "lanes/panels.h"

namespace penstock {

void plan_lanes(ConvPlan& plan, const float* weights) {
  const ConvShape& s = plan.shape;
  LanesPlan& l = plan.in_lanes;
  const int lanes = plan.kernels->lanes, in = s.in_channels / s.groups, out = s.out_channels / s.groups;
  int bundle = 1;
  while (s.groups % (2 * bundle) == 0 && 2 * bundle * out <= lanes) bundle *= 2;
  l.groups = s.groups / bundle;
  l.in_group = bundle * in;
  l.out_group = bundle * out;
  l.vectors = vectors_of(plan, l.out_group);
  l.panels = panels_of(l.vectors);
  const bool planes = s.in_layout == Layout::planes;
  for (int ky = 0; ky < s.kernel_h; ++ky)
    for (int kx = 0; kx < s.kernel_w; ++kx)
      l.taps.push_back(s.input.origin() + static_cast<std::ptrdiff_t>(ky * s.dilation_h - s.pad_h) * s.input.pitch() +
                       kx * s.dilation_w - s.pad_w);
  const int taps = plan.taps();
  l.group_floats = static_cast<std::int64_t>(taps) * l.in_group * l.vectors * lanes;
  const std::size_t floats = static_cast<std::size_t>(l.groups * l.group_floats);
  l.weights.allocate_shared(floats + kPickSlack);
  std::memset(l.weights.data(), 0, sizeof(float) * (floats + kPickSlack));
  for (int o = 0; o < s.out_channels; ++o) {
    const int group = o / l.out_group, at = o % l.out_group, first_in = o / out % bundle * in;
    std::int64_t from;
    std::int32_t step;
    find_vector(plan, group, at / lanes, from, step);
    float* const to = l.weights.data() + from + at % lanes;
    for (int i = 0; i < in; ++i)
      for (int t = 0; t < taps; ++t) {
        const std::int64_t row =
            planes ? static_cast<std::int64_t>(first_in + i) * taps + t : static_cast<std::int64_t>(t) * l.in_group + first_in + i;
        to[row * step] = weights[(static_cast<std::int64_t>(o) * in + i) * taps + t];
      }
  }
  if (bundle == 1 && !planes && in * taps >= kTurnColumns) l.given = weights;
  l.flat = !planes && taps == 1 && s.stride_h == 1 && s.stride_w == 1 && s.input.halo == 0;
  const std::int64_t bytes =
      4 * static_cast<std::int64_t>(planes ? s.in_channels : pixel_floats(s.in_channels)) * s.stride_h * s.stride_w;
  const std::int64_t pixels = static_cast<std::int64_t>(s.output.height) * s.output.width;
  const Tuning& t = plan.tuning();
  std::int64_t block = std::clamp(t.lanes_block_bytes / bytes, t.lanes_fewest_pixels, t.lanes_most_pixels);
  // What is added to stays in L2 beside its addend.
  if (s.adds) block = std::min(block, std::max(t.lanes_add_floats / pixel_floats(s.out_channels), t.lanes_fewest_pixels));
  l.blocks = static_cast<int>(std::min<std::int64_t>((pixels + block - 1) / block, l.flat && !s.adds ? pixels : s.output.height));
}

int lanes_blocks(const ConvPlan& plan) { return plan.in_lanes.blocks; }

bool lanes_can_add(const ConvShape& s) {
  return s.in_layout == Layout::pixels && s.out_layout == Layout::pixels && s.kernel_h == 1 && s.kernel_w == 1 && s.stride_h == 1 &&
         s.stride_w == 1 && s.groups == 1 && s.input.halo == 0 && s.output.halo == 0;
}

}  // namespace penstock
