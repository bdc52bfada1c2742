// Planning an int8 convolution: checks, weights in their own order, which algorithm, how scratch is laid out.
#include <algorithm>
#include <climits>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "int8/kernels.h"
#include "int8/select.h"

namespace penstock {
namespace {

constexpr std::int64_t kMostPixels = 1 << 22;  // sums of codes stay within int32

std::string check_shape(const Int8Shape& s) {
  const std::string wrong = wrong_size(s);
  if (!wrong.empty()) return wrong;
  if (s.out_channels <= kImageChannels) return "an int8 convolution has 5 output channels or more";
  if (static_cast<std::int64_t>(s.kernel_h) * s.kernel_w > kInt8MostTaps) return "an int8 kernel has 256 taps or fewer";
  if (static_cast<std::int64_t>(s.output.height) * s.output.width > kMostPixels) return "too many pixels";
  if (!(s.in.scale > 0.0f) || !(s.out.scale > 0.0f) || !std::isfinite(s.in.scale) || !std::isfinite(1.0f / s.out.scale))
    return "scale";
  if ((s.in.zero != 0 && s.in.zero != 128) || (s.out.zero != 0 && s.out.zero != 128)) return "zero point";
  if (static_cast<int>(s.function) > static_cast<int>(Function::leaky_relu)) return "function";
  return "";
}

// The largest |A| of docs/int8.md over all outputs.
std::int64_t bound_sums(const Int8Shape& s, const std::int8_t* weights) {
  constexpr std::int64_t kBlock = 1 << 20;  // of which sums fit into an int
  const std::int64_t row = static_cast<std::int64_t>(s.in_channels / s.groups) * s.kernel_h * s.kernel_w;
  std::int64_t bound = 0;
  for (int o = 0; o < s.out_channels; ++o) {
    std::int64_t sum = 0, magnitude = 0;
    for (std::int64_t first = 0; first < row; first += kBlock) {
      const std::int8_t* const block = weights + o * row + first;
      const int count = static_cast<int>(std::min(kBlock, row - first));
      int part = 0, part_magnitude = 0;
      for (int i = 0; i < count; ++i) {
        part += block[i];
        part_magnitude += std::abs(block[i]);
      }
      sum += part;
      magnitude += part_magnitude;
    }
    const std::int64_t up = (magnitude + sum) / 2, down = (magnitude - sum) / 2;
    bound = std::max(bound, 255 * std::max(up, down) + s.in.zero * (up + down));
  }
  return bound;
}

// Copies at most eight bytes; a copy of eight is one load and one store.
void copy_some(void* to, const void* from, int bytes) {
  if (bytes == 8) std::memcpy(to, from, 8);
  else std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

// Eight rows of eight bytes, as words, with rows and columns exchanged.
void transpose(std::uint64_t (&rows)[8]) {
  constexpr std::uint64_t kMasks[] = {0x00000000FFFFFFFF, 0x0000FFFF0000FFFF, 0x00FF00FF00FF00FF};
  for (int step = 4, level = 0; step > 0; step /= 2, ++level)
    for (int i = 0; i < 8; ++i) {
      if (i & step) continue;
      const std::uint64_t exchanged = ((rows[i] >> (8 * step)) ^ rows[i + step]) & kMasks[level];
      rows[i + step] ^= exchanged;
      rows[i] ^= exchanged << (8 * step);
    }
}

// The filters of one group, from [out][places.size()] to rows of outputs: filter element i becomes row places[i].
void order_weights(const std::int8_t* from, int out, const std::vector<std::int64_t>& places, int row, std::int8_t* to) {
  const std::int64_t count = static_cast<std::int64_t>(places.size());
  constexpr std::int64_t kRows = 64;  // rows that stay in L1 while all outputs are written to them
  for (std::int64_t first = 0; first < count; first += kRows) {
    const std::int64_t last = std::min(first + kRows, count);
    for (int o = 0; o < out; o += 8) {
      const int outs = std::min(8, out - o);
      for (std::int64_t i = first; i < last; i += 8) {
        const int some = static_cast<int>(std::min<std::int64_t>(8, last - i));
        std::uint64_t block[8] = {};
        for (int r = 0; r < outs; ++r) copy_some(&block[r], from + (o + r) * count + i, some);
        transpose(block);
        for (int r = 0; r < some; ++r) copy_some(to + places[static_cast<std::size_t>(i + r)] * row + o, &block[r], outs);
      }
    }
  }
}

}  // namespace

bool is_depthwise(const Int8Plan& plan) {
  const Int8Shape& s = plan.shape;
  return s.groups == s.in_channels && s.groups == s.out_channels && s.in_channels > kImageChannels;
}

void FreeInt8Plan::operator()(Int8Plan* plan) const { delete plan; }

void set_limits(Int8Finish& f, Function function, float slope, Quantised out) {
  const bool rectified = function == Function::relu || function == Function::relu6;
  f.function = function;
  f.slope = slope;
  f.zero = out.zero;
  f.inverse = 1.0f / out.scale;
  f.low = rectified ? 0.0f : static_cast<float>(-out.zero);
  f.high = static_cast<float>(255 - out.zero);
  if (function == Function::relu6) f.high = std::min(f.high, 6.0f * f.inverse);
}

Int8PlanPtr plan_int8(const Int8Shape& s, const std::int8_t* weights, const float* scales, const float* bias, Isa isa,
                      const Int8Algorithm* algorithm, std::string& why) {
  const Int8Kernels& kernels = int8_kernels(isa);
  return plan_int8_with(kernels, this_machine(kernels.isa).tuning, s, weights, scales, bias, algorithm, why);
}

Int8PlanPtr plan_int8_with(const Int8Kernels& kernels, const Tuning& tuning, const Int8Shape& s, const std::int8_t* weights,
                           const float* scales, const float* bias, const Int8Algorithm* algorithm, std::string& why) {
  why = check_shape(s);
  if (!why.empty()) return nullptr;
  const int in = s.in_channels / s.groups, out = s.out_channels / s.groups, area = s.kernel_h * s.kernel_w;
  for (int o = 0; o < s.out_channels; ++o)
    if (!std::isfinite(scales[o]) || (bias && !std::isfinite(bias[o]))) {
      why = "scale or bias of output " + std::to_string(o) + " is not finite";
      return nullptr;
    }
  const std::int64_t bound = bound_sums(s, weights);
  if (bound > INT_MAX) {
    why = "a sum could reach " + std::to_string(bound) + ", more than int32 holds; keep this layer in float32";
    return nullptr;
  }
  Int8PlanPtr made(new Int8Plan);
  Int8Plan& plan = *made;
  plan.shape = s;
  plan.kernels = &kernels;
  plan.tuning = tuning;
  plan.image_rows = s.in_channels <= kImageChannels && s.groups == 1 && s.dilation_w == 1;
  plan.taps = plan.image_rows ? s.kernel_h : area;
  plan.inputs = plan.image_rows ? s.kernel_w * in : in;
  plan.row = (out + 15) / 16 * 16;
  plan.sum_bound = bound;
  if (algorithm && !algorithm->fits(plan)) {
    why = std::string(algorithm->name) + " needs " + algorithm->needs;
    return nullptr;
  }
  for (const Int8Algorithm* one : records<Int8Algorithm>())
    if (algorithm ? one == algorithm : one->fits(plan) && one->suits(plan)) plan.ready.push_back(one);

  const std::size_t bytes = static_cast<std::size_t>(s.groups) * static_cast<std::size_t>(plan.inputs) *
                            static_cast<std::size_t>(plan.taps) * static_cast<std::size_t>(plan.row);
  plan.weights.allocate_shared(bytes / 4 + 16);
  plan.bytes = static_cast<std::int64_t>(bytes);
  std::int8_t* const to = reinterpret_cast<std::int8_t*>(plan.weights.data());
  std::memset(to, 0, out < plan.row ? bytes : 0);  // what follows the last output of a row
  std::memset(to + bytes, 0, 64);
  std::vector<std::int64_t> places(static_cast<std::size_t>(in) * static_cast<std::size_t>(area));
  for (int c = 0, i = 0; c < in; ++c)
    for (int t = 0; t < area; ++t, ++i) {
      const int tap = plan.image_rows ? t / s.kernel_w : t, input = plan.image_rows ? t % s.kernel_w * in + c : c;
      places[static_cast<std::size_t>(i)] = static_cast<std::int64_t>(input) * plan.taps + tap;
    }
  const std::int64_t group_from = static_cast<std::int64_t>(out) * in * area;
  const std::int64_t group_to = static_cast<std::int64_t>(plan.inputs) * plan.taps * plan.row;
  for (int g = 0; g < s.groups; ++g) order_weights(weights + g * group_from, out, places, plan.row, to + g * group_to);
  if (s.in.zero != 0) {
    plan.tap_pitch = (s.out_channels + 31) / 32 * 32;
    plan.tap_sums.resize(static_cast<std::size_t>(in) * static_cast<std::size_t>(plan.tap_pitch) + kInt8RowSlack);
    plan.all_tap_sums.resize(static_cast<std::size_t>(s.out_channels));
    for (std::int64_t o = 0; o < s.out_channels; ++o)
      for (std::int64_t c = 0; c < in; ++c) {
        const std::int8_t* const filter = weights + (o * in + c) * area;
        const int sum = std::accumulate(filter, filter + area, 0);
        plan.tap_sums[static_cast<std::size_t>(c * plan.tap_pitch + o)] = static_cast<std::int16_t>(sum);
        plan.all_tap_sums[static_cast<std::size_t>(o)] += sum;
      }
  }
  if (kernels.depthwise_quads && is_depthwise(plan)) plan.depthwise = plan_depthwise(s, weights);
  plan.scales.assign(scales, scales + s.out_channels);
  if (bias) plan.bias.assign(bias, bias + s.out_channels);
  else plan.bias.assign(static_cast<std::size_t>(s.out_channels), 0.0f);
  plan_packing(plan);
  return made;
}

void decide_int8(const Int8Plan& plan, Int8Task& task) {
  task.algorithm = cheapest(plan.ready, plan, task.in_count, task.out_count);
}

std::int64_t int8_plan_bytes(const Int8Plan& plan) { return plan.bytes; }

bool int8_is_far(const Int8Plan& plan) { return plan.bytes >= plan.tuning.int8_far_bytes; }

}  // namespace penstock
