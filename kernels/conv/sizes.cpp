#include "conv/sizes.h"

#include <algorithm>

namespace penstock {
namespace {

constexpr std::int64_t kMaxSide = 1 << 15;  // of a plane
constexpr std::int64_t kMaxChannels = 1 << 20;
constexpr std::int64_t kMaxKernel = 1 << 10;
constexpr std::int64_t kMaxFloats = std::int64_t{1} << 33;

struct Range {
  const char* what;
  std::int64_t value, low, high;
};

struct Axis {
  const char* name;
  int in, out, kernel, stride, pad, dilation;
};

std::string text(std::int64_t n) { return std::to_string(n); }

template <std::size_t kCount>
std::string out_of_range(const Range (&ranges)[kCount]) {
  for (const Range& r : ranges)
    if (r.value < r.low || r.value > r.high)
      return std::string(r.what) + " is " + text(r.value) + ", expected " + text(r.low) + " to " + text(r.high);
  return "";
}

}  // namespace

std::string wrong_size(const ConvSizes& s, bool checks_edges) {
  const std::int64_t most_padding = checks_edges ? kMaxKernel : s.input.halo;
  const Range ranges[] = {{"in_channels", s.in_channels, 1, kMaxChannels},
                          {"out_channels", s.out_channels, 1, kMaxChannels},
                          {"kernel_h", s.kernel_h, 1, kMaxKernel},
                          {"kernel_w", s.kernel_w, 1, kMaxKernel},
                          {"stride_h", s.stride_h, 1, kMaxKernel},
                          {"stride_w", s.stride_w, 1, kMaxKernel},
                          {"dilation_h", s.dilation_h, 1, kMaxKernel},
                          {"dilation_w", s.dilation_w, 1, kMaxKernel},
                          {"input height", s.input.height, 1, kMaxSide},
                          {"input width", s.input.width, 1, kMaxSide},
                          {"input halo", s.input.halo, 0, kMaxKernel},
                          {"output height", s.output.height, 1, kMaxSide},
                          {"output width", s.output.width, 1, kMaxSide},
                          {"output halo", s.output.halo, 0, kMaxKernel},
                          {"pad_h", s.pad_h, 0, most_padding},
                          {"pad_w", s.pad_w, 0, most_padding},
                          {"groups", s.groups, 1, std::min(s.in_channels, s.out_channels)}};
  const std::string wrong = out_of_range(ranges);
  if (!wrong.empty()) return wrong;
  if (s.in_channels % s.groups != 0 || s.out_channels % s.groups != 0)
    return text(s.in_channels) + " input and " + text(s.out_channels) + " output channels do not divide into " + text(s.groups) +
           " groups";
  const Axis axes[] = {{"height", s.input.height, s.output.height, s.kernel_h, s.stride_h, s.pad_h, s.dilation_h},
                       {"width", s.input.width, s.output.width, s.kernel_w, s.stride_w, s.pad_w, s.dilation_w}};
  for (const Axis& a : axes) {
    const int yields = conv_output_size(a.in, a.kernel, a.stride, a.pad, a.dilation);
    if (yields != a.out)
      return std::string("output ") + a.name + " is " + text(a.out) + ", but an input of " + text(a.in) + " with kernel " +
             text(a.kernel) + ", stride " + text(a.stride) + ", padding " + text(a.pad) + ", dilation " + text(a.dilation) +
             " yields " + text(yields);
  }
  const Range products[] = {{"number of weights", weight_count(s), 1, kMaxFloats},
                            {"size of the input", s.in_channels * std::int64_t{s.input.stride()}, 1, kMaxFloats},
                            {"size of the output", s.out_channels * std::int64_t{s.output.stride()}, 1, kMaxFloats}};
  return out_of_range(products);
}

}  // namespace penstock
