#include "listed/listed.h"

#include <algorithm>

#include "machine/targets.h"

namespace penstock {

const ListedKernels& listed_kernels(Isa isa) {
  static const ListedKernels* const tables[] = {
#define TARGET(name, architecture, runs_here, wide) PENSTOCK_WHERE(architecture, listed_kernels_##name(), nullptr),
#include "machine/targets.def"
#undef TARGET
  };
  return *tables[static_cast<int>(isa)];
}

ListedPlan plan_listed(const ConvSizes& shape, Isa isa, const float* weights, const float* bias, const float* shift,
                       std::int64_t block_floats, const std::vector<std::int32_t>& pixels, std::vector<std::int32_t> nearest) {
  ListedPlan plan;
  plan.shape = shape;
  plan.kernels = &listed_kernels(isa);
  plan.weights = weights;
  plan.shift = shift;
  plan.bias.assign(static_cast<std::size_t>(shape.out_channels), 0.0f);
  if (bias) std::copy(bias, bias + shape.out_channels, plan.bias.begin());
  const std::ptrdiff_t pitch = shape.input.pitch();
  for (int i = 0; i < shape.kernel_h; ++i)
    for (int j = 0; j < shape.kernel_w; ++j)
      plan.taps.push_back(shape.input.origin() + (static_cast<std::ptrdiff_t>(i) * shape.dilation_h - shape.pad_h) * pitch +
                          static_cast<std::ptrdiff_t>(j) * shape.dilation_w - shape.pad_w);
  plan.pixels = static_cast<int>(pixels.size());
  for (std::int32_t pixel : pixels) plan.places.push_back(plan.place(pixel / shape.output.width, pixel % shape.output.width));
  if (plan.fixed()) plan.places.resize(static_cast<std::size_t>(plan.padded(plan.pixels)), plan.places.back());
  plan.nearest = std::move(nearest);
  const std::int64_t strip = static_cast<std::int64_t>(shape.in_channels) * plan.tap_count() * plan.kernels->strip;
  const std::int64_t strips = plan.padded(plan.most_pixels()) / plan.kernels->strip;
  plan.block = static_cast<int>(std::clamp<std::int64_t>(block_floats / strip, 1, strips));
  return plan;
}

}  // namespace penstock
