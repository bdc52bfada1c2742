// Every convolution algorithm on every instruction set of this machine, against a naive loop in double.
//
//     conv_test [cases] [seed]
//
// Buffers are exactly as large as the contract says and start full of NaN, so that a read of anything unwritten
// shows in the result and a write outside shows under AddressSanitizer. Each case also runs its units in another
// split and order, which must give the same bits.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "conv/conv.h"
#include "run/pixels.h"

using namespace penstock;

namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Case {
  ConvShape shape;
  std::vector<float> weights, bias, gain;
  std::vector<std::int32_t> in_list, out_list;
  std::vector<float> pixels;  // [in_count][height][width]
  int later_count = 0, later_floats = 0;
  std::size_t spare_floats = 0;
};

using Random = std::mt19937;

int pick(Random& random, int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); }
float gauss(Random& random) { return std::normal_distribution<float>()(random); }

std::vector<std::int32_t> pick_list(Random& random, int channels) {
  std::vector<std::int32_t> list;
  const int kind = pick(random, 0, 9);
  const double density = kind == 0 ? 0.0 : kind < 3 ? 1.0 : std::uniform_real_distribution<>()(random);
  for (int c = 0; c < channels; ++c) {
    if (std::uniform_real_distribution<>()(random) < density) list.push_back(c);
  }
  return list;
}

// What the first layer of a ResNet looks like, in all sizes.
void make_first_layer(Random& random, ConvShape& s) {
  s.groups = s.dilation_h = s.dilation_w = 1;
  s.kernel_h = s.kernel_w = 7;
  s.stride_h = s.stride_w = 2;
  s.in_channels = pick(random, 1, 6);
}

// Small maps with many channels, as deep layers have: weights from afar, in several chunks. Few outputs are asked for, because the
// plain loops have to compute them too.
void make_deep(Random& random, Case& c) {
  ConvShape& s = c.shape;
  s.in_channels = pick(random, 256, 300);
  s.out_channels = pick(random, 256, 300);
  s.input.height = pick(random, 1, 9);
  s.input.width = pick(random, 1, 9);
  s.pad_h = s.pad_w = pick(random, 1, 2);
  s.input.halo = s.pad_h;
  s.output.height = conv_output_size(s.input.height, 3, 1, s.pad_h, 1);
  s.output.width = conv_output_size(s.input.width, 3, 1, s.pad_w, 1);
  c.in_list = pick_list(random, s.in_channels);
  c.out_list = pick_list(random, s.out_channels);
  const std::size_t most = pick(random, 1, 40);
  while (c.out_list.size() > most) c.out_list.erase(c.out_list.begin() + pick(random, 0, static_cast<int>(c.out_list.size()) - 1));
}

Case pick_case(Random& random, bool three_by_three, bool deep) {
  Case c;
  ConvShape& s = c.shape;
  do {
    s.groups = three_by_three || pick(random, 0, 2) ? 1 : pick(random, 1, 8);
    const bool depthwise = s.groups > 1 && pick(random, 0, 1);
    s.in_channels = s.groups * (depthwise ? 1 : pick(random, 1, s.groups > 1 ? 9 : 40));
    s.out_channels = s.groups * (depthwise ? 1 : pick(random, 1, s.groups > 1 ? 9 : 40));
    s.kernel_h = three_by_three ? 3 : pick(random, 1, 7);
    s.kernel_w = three_by_three ? 3 : pick(random, 0, 3) ? s.kernel_h : pick(random, 1, 7);
    s.stride_h = three_by_three ? 1 : pick(random, 1, 3);
    s.stride_w = three_by_three ? 1 : pick(random, 0, 3) ? s.stride_h : pick(random, 1, 3);
    s.dilation_h = three_by_three || pick(random, 0, 2) ? 1 : pick(random, 1, 3);
    s.dilation_w = three_by_three || pick(random, 0, 2) ? 1 : pick(random, 1, 3);
    if (!three_by_three && pick(random, 0, 3) == 0) make_first_layer(random, s);
    s.pad_h = pick(random, 0, 3);
    s.pad_w = pick(random, 0, 2) ? s.pad_h : pick(random, 0, 3);
    s.input.height = pick(random, 1, pick(random, 0, 3) ? 20 : 60);
    s.input.width = pick(random, 0, 1) ? s.input.height : pick(random, 1, 70);
    s.input.halo = std::max(s.pad_h, s.pad_w) + (pick(random, 0, 2) ? 0 : pick(random, 0, 2));
    s.output.height = conv_output_size(s.input.height, s.kernel_h, s.stride_h, s.pad_h, s.dilation_h);
    s.output.width = conv_output_size(s.input.width, s.kernel_w, s.stride_w, s.pad_w, s.dilation_w);
    s.output.halo = pick(random, 0, 3);
  } while (s.output.height < 1 || s.output.width < 1);
  s.activation = static_cast<Activation>(pick(random, 0, 1) ? 1 : pick(random, 0, kActivationCount - 1));
  c.in_list = pick_list(random, s.in_channels);
  c.out_list = pick_list(random, s.out_channels);
  if (deep) make_deep(random, c);
  c.weights.resize(static_cast<std::size_t>(s.out_channels) * (s.in_channels / s.groups) * s.kernel_h * s.kernel_w);
  for (float& w : c.weights) w = gauss(random);
  c.bias.resize(s.out_channels);
  for (float& b : c.bias) b = gauss(random);
  c.gain.resize(c.out_list.size());
  for (float& g : c.gain) g = std::fabs(gauss(random));
  c.pixels.resize(c.in_list.size() * s.input.height * s.input.width);
  for (float& p : c.pixels) p = gauss(random);
  c.later_count = pick(random, 0, 2) ? pick(random, 1, 600) : 0;
  c.later_floats = pick(random, 1, 1500);
  c.spare_floats = (s.out_channels - c.out_list.size()) * s.output.stride();
  return c;
}

double activate(double x, const ConvShape& s) {
  switch (s.activation) {
    case Activation::none: return x;
    case Activation::relu: return std::max(x, 0.0);
    case Activation::relu6: return std::min(std::max(x, 0.0), 6.0);
    case Activation::silu: return x / (1 + std::exp(-x));
    case Activation::gelu: return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::hardswish: return x * std::min(std::max(x + 3, 0.0), 6.0) / 6;
    case Activation::leaky_relu: return x > 0 ? x : s.leaky_slope * x;
  }
  return x;
}

// Whole output planes, padding included; `scale` receives the size of the sums that were rounded.
std::vector<double> naive(const Case& c, double& scale) {
  const ConvShape& s = c.shape;
  std::vector<double> out(c.out_list.size() * s.output.stride(), 0.0);
  const int in_group = s.in_channels / s.groups, out_group = s.out_channels / s.groups;
  scale = 1;
  for (std::size_t p = 0; p < c.out_list.size(); ++p) {
    const int o = c.out_list[p];
    for (int y = 0; y < s.output.height; ++y) {
      for (int x = 0; x < s.output.width; ++x) {
        double sum = 0, size = 0;
        for (std::size_t q = 0; q < c.in_list.size(); ++q) {
          const int i = c.in_list[q] - o / out_group * in_group;
          if (i < 0 || i >= in_group) continue;
          for (int ky = 0; ky < s.kernel_h; ++ky) {
            for (int kx = 0; kx < s.kernel_w; ++kx) {
              const int iy = y * s.stride_h + ky * s.dilation_h - s.pad_h;
              const int ix = x * s.stride_w + kx * s.dilation_w - s.pad_w;
              if (iy < 0 || iy >= s.input.height || ix < 0 || ix >= s.input.width) continue;
              const double product =
                  static_cast<double>(
                      c.weights[((static_cast<std::size_t>(o) * in_group + i) * s.kernel_h + ky) * s.kernel_w + kx]) *
                  c.pixels[(q * s.input.height + iy) * s.input.width + ix];
              sum += product;
              size += std::fabs(product);
            }
          }
        }
        scale = std::max(scale, c.gain[p] * (size + std::fabs(c.bias[o])));
        out[p * s.output.stride() + s.output.origin() + y * s.output.pitch() + x] = activate(c.gain[p] * (sum + c.bias[o]), s);
      }
    }
  }
  return out;
}

struct Aligned {
  explicit Aligned(std::size_t floats) : size(floats), data(nullptr) {
    // Not rounded up: the sanitizer then sees the first float too many.
    if (posix_memalign(reinterpret_cast<void**>(&data), 64, std::max<std::size_t>(floats * sizeof(float), 1))) abort();
    std::fill(data, data + size, kNaN);
  }
  ~Aligned() { free(data); }
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  std::size_t size;
  float* data;
};

// A map of `count` channels: its floats, the values of one channel with their padding, and where value i of channel p lies.
struct Map {
  Planes shape;
  Layout layout;
  int count;
  std::size_t floats() const {
    return layout == Layout::planes ? count * shape.stride() : static_cast<std::size_t>(pixels_floats(shape, count));
  }
  std::ptrdiff_t values() const {
    const std::ptrdiff_t rows = static_cast<std::ptrdiff_t>(shape.height + 2 * shape.halo) * shape.pitch();
    return layout == Layout::planes ? rows + 2 * shape.halo : static_cast<std::ptrdiff_t>(pixel_count(shape));
  }
  std::ptrdiff_t at(std::ptrdiff_t p, std::ptrdiff_t i) const {
    return layout == Layout::planes ? p * shape.stride() + i : i * pixel_floats(count) + p;
  }
};

Map input_of(const Case& c) { return {c.shape.input, c.shape.in_layout, static_cast<int>(c.in_list.size())}; }
Map output_of(const Case& c) { return {c.shape.output, c.shape.out_layout, static_cast<int>(c.out_list.size())}; }

void fill_input(const Case& c, Aligned& input) {
  const Planes& p = c.shape.input;
  const Map map = input_of(c);
  for (int q = 0; q < map.count; ++q) {
    for (std::ptrdiff_t i = 0; i < map.values(); ++i) input.data[map.at(q, i)] = 0.0f;
    for (int y = 0; y < p.height; ++y) {
      for (int x = 0; x < p.width; ++x) {
        input.data[map.at(q, p.origin() + y * p.pitch() + x)] =
            c.pixels[(static_cast<std::size_t>(q) * p.height + y) * p.width + x];
      }
    }
  }
}

// The sums of magnitudes that come with results in pixels, against those of the results.
bool sums_agree(const Case& c, const float* results, const std::vector<float>& sums, const std::vector<float>& again) {
  const Map map = output_of(c);
  for (int p = 0; p < map.count; ++p) {
    double sum = 0;
    for (std::ptrdiff_t i = 0; i < map.values(); ++i) sum += std::fabs(results[map.at(p, i)]);
    const std::size_t at = static_cast<std::size_t>(p);
    if (!(std::fabs(sums[at] - sum) <= 1e-5 * sum) || sums[at] != again[at]) return false;
  }
  return true;
}

void run(const ConvPlan& plan, ConvTask task, bool backwards) {
  decide_conv(plan, task);
  const ConvScratchFloats floats = conv_scratch(plan, task.in_count, task.out_count);
  Aligned shared(floats.shared);
  for (int stage = 0; stage < conv_stages(plan, task); ++stage) {
    const int units = conv_units(plan, task, stage);
    if (!backwards) {
      Aligned thread(floats.thread);
      run_conv(plan, task, stage, 0, units, {shared.data, thread.data});
      continue;
    }
    for (int unit = units - 1; unit >= 0; --unit) {
      Aligned thread(floats.thread);
      run_conv(plan, task, stage, unit, unit + 1, {shared.data, thread.data});
    }
  }
}

std::string describe(const Case& c) {
  const ConvShape& s = c.shape;
  char text[400];
  std::snprintf(text, sizeof text,
                "in %zu/%d out %zu/%d groups %d kernel %dx%d stride %dx%d pad %dx%d dilation %dx%d input %dx%d halo %d "
                "output %dx%d halo %d activation %d layouts %d to %d",
                c.in_list.size(), s.in_channels, c.out_list.size(), s.out_channels, s.groups, s.kernel_h, s.kernel_w, s.stride_h,
                s.stride_w, s.pad_h, s.pad_w, s.dilation_h, s.dilation_w, s.input.height, s.input.width, s.input.halo,
                s.output.height, s.output.width, s.output.halo, static_cast<int>(s.activation), static_cast<int>(s.in_layout),
                static_cast<int>(s.out_layout));
  return text;
}

// With `algorithm`, or with what suits when it is null.
bool check(const Case& c, Isa isa, const ConvAlgorithm* algorithm) {
  const char* const name = algorithm ? algorithm->name : "automatic";
  const ConvShape& s = c.shape;
  std::string error;
  const ConvPlanPtr plan = plan_conv(s, c.weights.data(), c.bias.data(), this_machine(isa), algorithm, error);
  if (!plan) {
    std::printf("FAILED to plan %s on %s: %s\n  %s\n", name, isa_name(isa), error.c_str(), describe(c).c_str());
    return false;
  }
  const Map in = input_of(c), out = output_of(c);
  Aligned input(in.floats());
  fill_input(c, input);
  Aligned once(out.floats()), again(once.size);
  std::vector<float> sums(c.out_list.size()), sums_again(c.out_list.size());
  const bool pixels = s.out_layout == Layout::pixels;
  ConvTask task;
  task.input = input.data;
  task.in_list = c.in_list.data();
  task.in_count = static_cast<int>(c.in_list.size());
  task.out_list = c.out_list.data();
  task.out_count = static_cast<int>(c.out_list.size());
  task.gain = c.gain.data();
  Aligned spare(c.spare_floats);
  task.spare = spare.data;
  task.spare_floats = c.spare_floats;
  task.output = once.data;
  if (pixels) task.sums = sums.data();
  run(*plan, task, false);
  const std::vector<float> row(c.later_floats);
  const std::vector<const float*> later(c.later_count, row.data());
  task.later = later.data();
  task.later_count = c.later_count;
  task.later_floats = c.later_floats;
  task.output = again.data;
  if (pixels) task.sums = sums_again.data();
  task.threads = 2;  // cut into other units, and something else fetched meanwhile: not a bit may change
  run(*plan, task, true);
  if (conv_takes_bare(*plan)) {  // not a bit may change here either, and nothing around the image be read
    Aligned bare(c.pixels.size()), copied(once.size);
    std::copy(c.pixels.begin(), c.pixels.end(), bare.data);
    task.input = bare.data;
    task.output = copied.data;
    task.input_layout = Layout::bare;
    run(*plan, task, true);
    if (std::memcmp(copied.data, once.data, once.size * sizeof(float)) != 0) {
      std::printf("FAILED %s on %s: a bare image gives another result\n  %s\n", name, isa_name(isa), describe(c).c_str());
      return false;
    }
  }
  double scale = 1;
  const std::vector<double> expected = naive(c, scale);
  if (pixels && !sums_agree(c, once.data, sums, sums_again)) {
    std::printf("FAILED %s on %s: sums of magnitudes\n  %s\n", name, isa_name(isa), describe(c).c_str());
    return false;
  }
  for (std::size_t p = 0; p < c.out_list.size(); ++p) {
    for (std::ptrdiff_t i = 0; i < out.values(); ++i) {
      const std::ptrdiff_t at = out.at(static_cast<std::ptrdiff_t>(p), i);
      const double wanted = expected[p * s.output.stride() + i];
      const std::ptrdiff_t from_origin = i - s.output.origin();
      const bool inside =
          from_origin >= 0 && from_origin / s.output.pitch() < s.output.height && from_origin % s.output.pitch() < s.output.width;
      const double tolerance = inside ? 1e-5 * scale : 0;
      if (!(std::fabs(once.data[at] - wanted) <= tolerance) || std::memcmp(&once.data[at], &again.data[at], sizeof(float)) != 0) {
        std::printf("FAILED %s on %s: plane %zu, offset %td from (0, 0): got %.9g, again %.9g, expected %.9g\n  %s\n", name,
                    isa_name(isa), p, from_origin, once.data[at], again.data[at], wanted, describe(c).c_str());
        return false;
      }
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const int cases = argc > 1 ? std::atoi(argv[1]) : 300;
  Random random(argc > 2 ? std::atoi(argv[2]) : 1);
  int failed = 0, ran = 0;
  for (int n = 0; n < cases && failed < 10; ++n) {
    const bool three_by_three = n % 2 == 0;
    Case c = pick_case(random, three_by_three, n % 10 == 0);
    for (const auto& [from, to] : {std::pair(Layout::planes, Layout::planes), std::pair(Layout::pixels, Layout::pixels),
                                   std::pair(Layout::planes, Layout::pixels)}) {
      c.shape.in_layout = from;
      c.shape.out_layout = to;
      if (conv_needs_no_halo(c.shape)) c.shape.input.halo = pick(random, 0, 1);
      else c.shape.input.halo = std::max({c.shape.input.halo, c.shape.pad_h, c.shape.pad_w});
      for (int i = 0; i < kIsaCount; ++i) {
        const Isa isa = static_cast<Isa>(i);
        if (!isa_available(isa)) continue;
        failed += !check(c, isa, nullptr), ++ran;
        for (const ConvAlgorithm* algorithm : records<ConvAlgorithm>())
          if (algorithm->layout == to && algorithm->fits(c.shape)) failed += !check(c, isa, algorithm), ++ran;
      }
    }
  }
  std::printf("%d convolutions checked, %d failed\n", ran, failed);
  return failed != 0;
}
