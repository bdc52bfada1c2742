// Every int8 algorithm on every instruction set against naive loops, on random shapes and lists: equal bit for bit.
//   int8_test [cases] [seed]
// Buffers have exactly the size that pixels.h and int8_scratch promise, so that sanitizers see what lies beyond.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>

#include "int8/select.h"
#include "machine/no_contraction.h"

using namespace penstock;

namespace {

std::mt19937 g_random;

int between(int low, int high) { return low + static_cast<int>(g_random() % static_cast<unsigned>(high - low + 1)); }

std::vector<std::int32_t> random_list(int channels, int percent) {
  std::vector<std::int32_t> list;
  for (int c = 0; c < channels; ++c)
    if (between(1, 100) <= percent) list.push_back(c);
  return list;
}

struct Case {
  Int8Shape shape;
  std::vector<std::int8_t> weights;
  std::vector<float> scales, bias, gain;
  std::vector<std::int32_t> in, out;
  std::vector<std::uint8_t> input;
  std::vector<float> constants;  // 1x1: of the inputs that the list leaves out
};

Int8Shape random_shape() {
  Int8Shape s;
  const int drawn = between(0, 11), kind = drawn > 9 ? 7 : drawn;
  s.kernel_h = between(1, 4);
  s.kernel_w = between(1, 4);
  if (kind == 6) s.kernel_h = s.kernel_w = 1;
  if (kind < 4) s.kernel_h = s.kernel_w = 3;
  s.stride_h = kind < 3 ? 1 : between(1, 3);
  s.stride_w = kind < 3 ? 1 : between(1, 3);
  s.dilation_h = kind < 5 ? 1 : between(1, 2);
  s.dilation_w = kind < 5 ? 1 : between(1, 2);
  s.in_channels = kind == 9 ? between(1, 4) : between(5, 90);
  s.out_channels = between(5, 90);
  if (kind < 4 && between(0, 14) == 0) {
    // Wide enough for weights that are gathered in several pieces of rows.
    s.in_channels = between(200, 400);
    s.out_channels = between(150, 260);
  }
  const bool wide = kind == 7 && between(0, 2) == 0;  // more columns than a depthwise kernel brings together at a time
  if (kind == 7) {
    s.groups = s.out_channels = s.in_channels = between(0, 2) > 0 ? between(5, 60) : between(61, 200);
    if (between(0, 1) == 0) s.kernel_h = s.kernel_w = 2 * between(1, 3) + 1;
    if (between(0, 4) == 0) s.dilation_h = s.dilation_w = between(1, 12);
  }
  if (kind == 8) {
    s.groups = between(2, 5);
    s.in_channels = s.groups * between(2, 20);
    s.out_channels = s.groups * between(3, 20);
  }
  s.pad_h = between(0, s.kernel_h / 2);
  s.pad_w = between(0, s.kernel_w / 2);
  s.input.halo = std::max(s.pad_h, s.pad_w) + between(0, 1);
  s.input.height = between(1, wide ? 3 : 14) + (s.kernel_h - 1) * s.dilation_h;
  s.input.width = between(1, wide ? 150 : 19) + (s.kernel_w - 1) * s.dilation_w;
  s.output.height = conv_output_size(s.input.height, s.kernel_h, s.stride_h, s.pad_h, s.dilation_h);
  s.output.width = conv_output_size(s.input.width, s.kernel_w, s.stride_w, s.pad_w, s.dilation_w);
  s.output.halo = between(0, 2);
  s.function = static_cast<Function>(between(0, 6));
  s.slope = 0.01f * static_cast<float>(between(0, 50));
  s.in = Quantised{0.02f, between(0, 1) * 128};
  const bool rectified = s.function == Function::relu || s.function == Function::relu6;
  s.out = Quantised{0.005f * static_cast<float>(between(1, 20)), rectified && between(0, 3) ? 0 : 128};
  return s;
}

Case random_case() {
  Case c;
  const Int8Shape& s = c.shape = random_shape();
  c.weights.resize(static_cast<std::size_t>(s.out_channels * (s.in_channels / s.groups) * s.kernel_h * s.kernel_w));
  const int most = between(1, s.in_channels > 100 ? 20 : 127);  // sums that Winograd can hold
  for (std::int8_t& w : c.weights) w = static_cast<std::int8_t>(between(-most, most));
  c.scales.resize(static_cast<std::size_t>(s.out_channels));
  c.bias.resize(c.scales.size());
  for (float& x : c.scales) x = 1e-6f * static_cast<float>(between(1, 300));
  for (float& x : c.bias) x = 0.01f * static_cast<float>(between(-90, 90));
  const int density = between(0, 3) == 0 ? 100 : between(5, 95);
  c.in = random_list(s.in_channels, s.in_channels <= kImageChannels ? 100 : density);
  c.out = random_list(s.out_channels, between(0, 2) == 0 ? 100 : density);
  if (c.out.empty()) c.out.push_back(s.out_channels - 1);
  c.gain.resize(c.out.size());
  for (float& x : c.gain) x = 0.01f * static_cast<float>(between(1, 300));
  const int bytes = pixel_bytes(s.in_channels, static_cast<int>(c.in.size()));
  c.input.resize(static_cast<std::size_t>(pixels_size(s.input, s.in_channels, static_cast<int>(c.in.size()))));
  for (std::uint8_t& q : c.input) q = static_cast<std::uint8_t>(g_random());
  if (between(0, 9) == 0) std::fill(c.input.begin(), c.input.end(), std::uint8_t{255});
  fill_padding(c.input.data(), s.input, bytes, s.in.zero);
  if (s.kernel_h * s.kernel_w == 1 && s.groups == 1 && s.in_channels > kImageChannels && between(0, 1)) {
    c.constants.resize(static_cast<std::size_t>(s.in_channels));
    for (float& x : c.constants) x = static_cast<float>(between(-s.in.zero, 255 - s.in.zero));
  }
  return c;
}

// The functions of docs/int8.md, one number at a time.
float exponential(float x) {
  x = std::min(std::max(x, -87.0f), 88.0f);
  const float n = std::nearbyint(x * 1.44269504f);
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  for (float term : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f}) p = p * r + term;
  p = p * r * r + r + 1.0f;
  return std::ldexp(p, static_cast<int>(n));
}

float error_function(float x) {
  const float a = std::fabs(x), t = 1.0f / (1.0f + 0.3275911f * a), q = a * a;
  float p = 1.061405429f;
  for (float term : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f}) p = p * t + term;
  const float far = 1.0f - p * t * exponential(-q);
  const float near = a * (1.128379167f + q * (-0.376126389f + q * (0.112837917f + q * -0.0268661706f)));
  return std::copysign(a < 0.25f ? near : far, x);
}

int code_of(const Int8Shape& s, std::int64_t sum, float k, float b) {
  const float r = 1.0f / s.out.scale, low = static_cast<float>(-s.out.zero), high = static_cast<float>(255 - s.out.zero);
  const float a = static_cast<float>(static_cast<std::int32_t>(sum));
  float y = 0.0f;
  const float v = a * k + b;
  switch (s.function) {
    case Function::silu: y = v * (1.0f / (1.0f + exponential(-v))) * r; break;
    case Function::gelu: y = 0.5f * v * (1.0f + error_function(v * 0.70710678f)) * r; break;
    case Function::hardswish: y = v * std::min(std::max(v + 3.0f, 0.0f), 6.0f) * (1.0f / 6.0f) * r; break;
    default: y = a * (k * r) + b * r; break;
  }
  if (s.function == Function::leaky_relu && y < 0.0f) y = y * s.slope;
  if (s.function == Function::relu6) y = std::min(y, 6.0f * r);
  if (s.function == Function::relu || s.function == Function::relu6) y = std::max(y, 0.0f);
  return static_cast<int>(std::nearbyint(std::min(std::max(y, low), high))) + s.out.zero;
}

// The machine's numbers, or such that small layers take the ways of large ones.
Tuning some_tuning(const Int8Kernels& kernels) {
  Tuning tuning = this_machine(kernels.isa).tuning;
  if (between(0, 1) == 0) return tuning;
  tuning.int8_panel_bytes = static_cast<std::size_t>(between(0, 1) << 16);
  tuning.int8_panel_pairs = between(1, 9);
  tuning.int8_panel_units = between(1, 3);
  tuning.int8_near_bytes = static_cast<std::size_t>(between(0, 1) << 14);
  tuning.int8_winograd_bytes = static_cast<std::size_t>(between(1, 40)) << 14;
  tuning.int8_winograd_far_bytes = static_cast<std::size_t>(between(1, 40)) << 14;
  tuning.int8_kept_bytes = static_cast<std::size_t>(between(0, 1)) << 24;
  tuning.int8_fetch_bytes = static_cast<std::size_t>(between(0, 1)) << 20;
  tuning.int8_transform_share = between(0, 1);
  return tuning;
}

bool check(const Case& c, const Int8Kernels& kernels, const Int8Algorithm* algorithm, int threads, bool with_gain) {
  const Int8Shape& s = c.shape;
  std::string why;
  const Int8PlanPtr plan =
      plan_int8_with(kernels, some_tuning(kernels), s, c.weights.data(), c.scales.data(), c.bias.data(), algorithm, why);
  if (plan == nullptr) {
    std::printf("no plan: %s\n", why.c_str());
    return false;
  }
  const int in_count = static_cast<int>(c.in.size()), out_count = static_cast<int>(c.out.size());
  // Scratch for more channels than there are must serve too: budgets are bounds.
  const bool loose = g_random() % 2 == 0;
  const std::size_t scratch_bytes =
      int8_scratch(*plan, loose ? s.in_channels : in_count, loose ? s.out_channels : out_count, threads);
  std::unique_ptr<std::uint8_t, decltype(&std::free)> scratch(
      static_cast<std::uint8_t*>(std::aligned_alloc(64, (scratch_bytes + 63) / 64 * 64)), &std::free);
  std::memset(scratch.get(), 0x5a, scratch_bytes);
  std::vector<std::uint8_t> output(static_cast<std::size_t>(pixels_size(s.output, s.out_channels, out_count)), 0xee);
  std::vector<std::int32_t> sums(c.out.size());
  Int8Task task{c.input.data(),
                c.in.data(),
                in_count,
                output.data(),
                c.out.data(),
                out_count,
                with_gain ? c.gain.data() : nullptr,
                nullptr,
                threads,
                sums.data(),
                nullptr,
                0,
                c.constants.empty() ? nullptr : c.constants.data(),
                nullptr};
  // What is fetched for later changes nothing.
  const Int8Fetch later[] = {{c.input.data(), 40, c.out.data(), out_count}, {c.input.data(), 200, nullptr, 3}};
  if (g_random() % 2 == 0) {
    task.later = later;
    task.later_count = 2;
  }
  decide_int8(*plan, task);
  begin_int8(*plan, task, scratch.get());
  for (int stage = 0; stage < int8_stages(*plan, task); ++stage)
    for (int unit = int8_units(*plan, task, stage) - 1; unit >= 0; --unit)
      run_int8(*plan, task, stage, unit, unit + 1, unit % threads, scratch.get());
  end_int8(*plan, task, scratch.get());

  const int in = s.in_channels / s.groups, out = s.out_channels / s.groups;
  const int in_bytes = pixel_bytes(s.in_channels, in_count), bytes = pixel_bytes(s.out_channels, out_count);
  for (int p = 0; p < out_count; ++p) {
    const int o = c.out[static_cast<std::size_t>(p)];
    float k = c.scales[static_cast<std::size_t>(o)], b = c.bias[static_cast<std::size_t>(o)];
    if (with_gain) k *= c.gain[static_cast<std::size_t>(p)], b *= c.gain[static_cast<std::size_t>(p)];
    std::int64_t total = 0, constant = 0;
    for (std::size_t channel = 0; channel < c.constants.size(); ++channel)
      if (!std::binary_search(c.in.begin(), c.in.end(), static_cast<std::int32_t>(channel)))
        constant +=
            static_cast<std::int64_t>(c.constants[channel]) * c.weights[static_cast<std::size_t>(o) * c.constants.size() + channel];
    for (int y = 0; y < s.output.height; ++y)
      for (int x = 0; x < s.output.width; ++x) {
        std::int64_t sum = constant;
        for (int q = 0; q < in_count; ++q) {
          const int channel = c.in[static_cast<std::size_t>(q)];
          if (channel / in != o / out) continue;
          for (int i = 0; i < s.kernel_h; ++i)
            for (int j = 0; j < s.kernel_w; ++j) {
              const int row = y * s.stride_h - s.pad_h + i * s.dilation_h, column = x * s.stride_w - s.pad_w + j * s.dilation_w;
              const bool inside = row >= 0 && row < s.input.height && column >= 0 && column < s.input.width;
              const int code =
                  inside ? c.input[static_cast<std::size_t>((s.input.origin() + row * s.input.pitch() + column) * in_bytes + q)]
                         : s.in.zero;
              sum += (code - s.in.zero) *
                     c.weights[static_cast<std::size_t>(((o * in + channel % in) * s.kernel_h + i) * s.kernel_w + j)];
            }
        }
        const int wanted = code_of(s, sum, k, b);
        const int got = output[static_cast<std::size_t>((s.output.origin() + y * s.output.pitch() + x) * bytes + p)];
        total += std::abs(wanted - s.out.zero);
        if (got != wanted) {
          std::printf(
              "%s %s: %d->%d %dx%d/%d,%d groups %d on %dx%d, %d of %d active, function %d, zeros %d %d: output %d at %d,%d is %d, "
              "expected %d\n",
              kernels.name, task.algorithm->name, s.in_channels, s.out_channels, s.kernel_h, s.kernel_w, s.stride_h, s.stride_w,
              s.groups, s.input.height, s.input.width, in_count, out_count, static_cast<int>(s.function), s.in.zero, s.out.zero, o,
              y, x, got, wanted);
          return false;
        }
      }
    if (total != sums[static_cast<std::size_t>(p)]) {
      std::printf("%s: sum of output %d is %d, expected %lld\n", kernels.name, o, sums[static_cast<std::size_t>(p)],
                  static_cast<long long>(total));
      return false;
    }
    for (std::int64_t pixel = 0; pixel < pixel_count(s.output); ++pixel) {
      const std::int64_t row = pixel / s.output.pitch() - s.output.halo, column = pixel % s.output.pitch() - s.output.halo;
      const bool inside = row >= 0 && row < s.output.height && column >= 0 && column < s.output.width;
      if (!inside && output[static_cast<std::size_t>(pixel * bytes + p)] != s.out.zero) {
        std::printf("%s: padding at pixel %lld holds %d\n", kernels.name, static_cast<long long>(pixel),
                    output[static_cast<std::size_t>(pixel * bytes + p)]);
        return false;
      }
    }
  }
  return true;
}

bool algorithm_fits(const Case& c, const Int8Kernels& kernels, const Int8Algorithm& algorithm) {
  std::string why;
  const Int8PlanPtr plan = plan_int8_with(kernels, this_machine(kernels.isa).tuning, c.shape, c.weights.data(), c.scales.data(),
                                          c.bias.data(), nullptr, why);
  return plan != nullptr && algorithm.fits(*plan);
}

// A set that computes something else than the baseline is passed over.
bool check_fall_back(const Int8Kernels& good) {
  const Int8Kernels& plain = int8_kernels(Isa::baseline);
  static const Int8Kernels* honest;
  honest = &good;
  Int8Kernels bad = good;
  // One code in a corner is off by one.
  bad.direct = [](const Int8Run& run, int unit, int member) {
    honest->direct(run, unit, member);
    const Int8Shape& s = run.plan.shape;
    run.task.output[s.output.origin() * pixel_bytes(s.out_channels, run.task.out_count)] ^= 1;
  };
  const Int8Kernels* const tables[] = {&bad, &good, &plain};
  const Int8Kernels* const worse[] = {&bad, &plain};
  return int8_kernels_agree(good) && !int8_kernels_agree(bad) && &first_that_agrees(tables, 3) == &good &&
         &first_that_agrees(worse, 2) == &plain;
}

}  // namespace

int main(int argc, char** argv) {
  const int cases = argc > 1 ? std::atoi(argv[1]) : 200;
  const unsigned seed = argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 1u;
  // Every form that this machine can run, the narrower ones of a set too.
  std::vector<const Int8Kernels*> sets;
  for (int i = 0; i < kIsaCount; ++i) {
    if (!isa_available(static_cast<Isa>(i))) continue;
    for (const Int8Kernels* table : int8_tables(static_cast<Isa>(i)))
      if (std::find(sets.begin(), sets.end(), table) == sets.end()) sets.push_back(table);
  }
  int ran = 0;
  for (int i = 0; i < cases; ++i) {
    g_random.seed(seed + static_cast<unsigned>(i) * 7919u);
    const Case c = random_case();
    const bool gain = between(0, 1) == 1;
    const int threads = between(1, 3);
    std::vector<const Int8Algorithm*> all = records<Int8Algorithm>();
    all.push_back(nullptr);  // as planning chooses
    for (const Int8Kernels* kernels : sets)
      for (const Int8Algorithm* algorithm : all) {
        if (algorithm && !algorithm_fits(c, *kernels, *algorithm)) continue;
        ++ran;
        if (check(c, *kernels, algorithm, threads, gain)) continue;
        std::printf("case %d of seed %u failed\n", i, seed);
        return 1;
      }
  }
  for (const Int8Kernels* kernels : sets)
    if (!check_fall_back(*kernels)) {
      std::printf("%s: the fall-back does not work\n", kernels->name);
      return 1;
    }
  std::printf("%d cases, %d convolutions, equal on", cases, ran);
  for (const Int8Kernels* kernels : sets) std::printf(" %s", kernels->name);
  std::printf("\n");
  return 0;
}
