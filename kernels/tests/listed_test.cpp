// Convolution at listed pixels for every instruction set, against naive loops.
//
//     listed_test [cases] [seed]
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "listed/listed.h"
#include "ops/ops.h"

namespace {

using namespace penstock;

std::mt19937 generator;
int pick(int low, int high) { return low + static_cast<int>(generator() % static_cast<unsigned>(high - low + 1)); }
float value() { return std::uniform_real_distribution<float>(-1.0f, 1.0f)(generator); }
std::vector<float> values(std::size_t n) {
  std::vector<float> made(n);
  for (float& v : made) v = value();
  return made;
}

struct Case {
  ConvSizes shape;
  std::vector<std::int32_t> pixels, in_list, nearest;
  std::vector<float> weights, bias, input;

  Case() {
    ConvSizes& s = shape;
    s.in_channels = pick(1, 20);
    s.out_channels = pick(1, 30);
    s.kernel_h = pick(1, 4);
    s.kernel_w = pick(1, 4);
    s.stride_h = pick(1, 3);
    s.stride_w = pick(1, 3);
    s.dilation_h = pick(1, 2);
    s.dilation_w = pick(1, 2);
    const int halo = pick(0, 3);
    s.pad_h = pick(0, halo);
    s.pad_w = pick(0, halo);
    const int out_h = pick(1, 9), out_w = pick(1, 20);
    const auto side = [](int out, int stride, int kernel, int dilation, int pad) {
      const int least = (out - 1) * stride + dilation * (kernel - 1) + 1 - 2 * pad;
      return least < 1 ? 1 : least;
    };
    s.input = {side(out_h, s.stride_h, s.kernel_h, s.dilation_h, s.pad_h),
               side(out_w, s.stride_w, s.kernel_w, s.dilation_w, s.pad_w), halo};
    s.output = {conv_output_size(s.input.height, s.kernel_h, s.stride_h, s.pad_h, s.dilation_h),
                conv_output_size(s.input.width, s.kernel_w, s.stride_w, s.pad_w, s.dilation_w), 1};
    const int area = s.output.height * s.output.width;
    const int share = pick(1, 10);
    for (int i = 0; i < area; ++i)
      if (pick(1, 10) <= share) pixels.push_back(i);
    if (pixels.empty()) pixels.push_back(pick(0, area - 1));
    nearest.assign(static_cast<std::size_t>(area), 0);
    for (int c = 0; c < s.in_channels; ++c)
      if (pick(0, 3)) in_list.push_back(c);
    const std::size_t row = static_cast<std::size_t>(s.in_channels * s.kernel_h * s.kernel_w);
    weights = values(row * static_cast<std::size_t>(s.out_channels));
    bias = values(static_cast<std::size_t>(s.out_channels));
    // Exactly as long as planes.h says, so that a sanitizer sees every step outside.
    input.assign(in_list.size() * static_cast<std::size_t>(s.input.stride()), NAN);
    for (std::size_t p = 0; p < in_list.size(); ++p) {
      float* const plane = input.data() + static_cast<std::ptrdiff_t>(p) * s.input.stride();
      for (int y = 0; y < s.input.height; ++y)
        for (int x = 0; x < s.input.width; ++x) plane[s.input.origin() + y * s.input.pitch() + x] = value();
      zero_padding(plane, s.input);
    }
  }

  double expected(int o, std::int32_t pixel) const {
    const ConvSizes& s = shape;
    double sum = bias[static_cast<std::size_t>(o)];
    const int y0 = pixel / s.output.width * s.stride_h - s.pad_h, x0 = pixel % s.output.width * s.stride_w - s.pad_w;
    for (std::size_t p = 0; p < in_list.size(); ++p)
      for (int i = 0; i < s.kernel_h; ++i)
        for (int j = 0; j < s.kernel_w; ++j) {
          const int y = y0 + i * s.dilation_h, x = x0 + j * s.dilation_w;
          if (y < 0 || x < 0 || y >= s.input.height || x >= s.input.width) continue;
          const int at = ((o * s.in_channels + in_list[p]) * s.kernel_h + i) * s.kernel_w + j;
          sum += double{weights[static_cast<std::size_t>(at)]} *
                 input[p * static_cast<std::size_t>(s.input.stride()) +
                       static_cast<std::size_t>(s.input.origin() + y * s.input.pitch() + x)];
        }
    return sum;
  }
};

bool holds(const Case& c, Isa isa) {
  const ListedPlan plan = plan_listed(c.shape, isa, c.weights.data(), c.bias.data(), nullptr, pick(1, 9000), c.pixels, c.nearest);
  std::vector<float> sums(static_cast<std::size_t>(plan.sum_floats()), NAN);
  std::vector<float> packed(static_cast<std::size_t>(plan.packed_floats()), NAN);
  ListedArgs args;
  args.input = c.input.data();
  args.in_stride = c.shape.input.stride();
  args.in_list = c.in_list.data();
  args.in_count = static_cast<int>(c.in_list.size());
  args.in_channels = c.shape.in_channels;
  args.taps = plan.taps.data();
  args.tap_count = plan.tap_count();
  args.places = plan.places.data();
  args.weights = plan.weights;
  args.bias = plan.bias.data();
  args.out_channels = c.shape.out_channels;
  args.sums = sums.data();
  args.step = plan.padded(plan.pixels);
  const int strips = static_cast<int>(args.step / plan.kernels->strip);
  for (int begin = 0; begin < strips; begin += plan.block)
    plan.kernels->run(args, begin, begin + plan.block < strips ? begin + plan.block : strips, packed.data());
  for (int o = 0; o < c.shape.out_channels; ++o)
    for (std::size_t n = 0; n < c.pixels.size(); ++n) {
      const float found = sums[static_cast<std::size_t>(o * args.step) + n];
      const double wanted = c.expected(o, c.pixels[n]);
      if (!(std::fabs(found - wanted) <= 1e-4 * (1 + std::fabs(wanted)))) {
        std::printf("%s: output %d, pixel %d: expected %g, got %g\n", isa_name(isa), o, c.pixels[n], wanted, double{found});
        return false;
      }
    }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const int cases = argc > 1 ? std::atoi(argv[1]) : 200;
  generator.seed(argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 1u);
  int failed = 0, tried = 0;
  for (int n = 0; n < cases; ++n) {
    const Case c;
    for (int i = 0; i < kIsaCount; ++i) {
      if (!isa_available(static_cast<Isa>(i))) continue;
      ++tried;
      if (!holds(c, static_cast<Isa>(i))) std::printf("case %d failed\n", n), ++failed;
    }
  }
  std::printf("%d convolutions at listed pixels, %d failed\n", tried, failed);
  return failed != 0;
}
