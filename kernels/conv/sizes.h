// The sizes of a convolution, whatever it computes on, and the one check of them.
#pragma once
#include <cstdint>
#include <string>

#include "run/planes.h"
#include "run/window.h"

namespace penstock {

struct ConvSizes : SlidingWindow {
  int in_channels = 0, out_channels = 0;
  int groups = 1;
  Planes input;   // its halo must be at least the padding
  Planes output;  // height and width must be what the convolution yields; the halo is whatever readers need
};

// Output size of a convolution along one axis; 0 or less when the kernel does not fit.
constexpr int conv_output_size(int size, int kernel, int stride, int pad, int dilation) {
  const int reach = size + 2 * pad - dilation * (kernel - 1) - 1;
  return reach < 0 ? 0 : reach / stride + 1;
}

// The name of the first size that makes no sense, what it is and what was expected; empty if all of them do. The limits keep products
// of sizes inside 64 bits. `checks_edges`: the convolution looks where the map ends, so that the input's halo need not hold the padding.
std::string wrong_size(const ConvSizes& sizes, bool checks_edges = false);

// Weights of a convolution: [out][in / groups][kernel_h][kernel_w].
constexpr std::int64_t weight_count(const ConvSizes& s) {
  return std::int64_t{s.out_channels} * (s.in_channels / s.groups) * s.kernel_h * s.kernel_w;
}

}  // namespace penstock
