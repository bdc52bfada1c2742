#include "int8/select.h"

#include <algorithm>
#include <iterator>
#include <mutex>

#include "machine/targets.h"

namespace penstock {

const Int8Kernels& int8_kernels_baseline();
#if PENSTOCK_X86
const Int8Kernels& int8_kernels_avx2();
#if PENSTOCK_X86_512
const Int8Kernels& int8_kernels_avx512();
const Int8Kernels& int8_kernels_avx512_vnni();
const Int8Kernels& int8_kernels_avx512_vbmi();
#endif
#elif PENSTOCK_ARM64
const Int8Kernels& int8_kernels_neon();
const Int8Kernels& int8_kernels_neon_dot();
const Int8Kernels& int8_kernels_neon_matrix();
#endif

namespace {

// Numbers that look random, the same on every machine.
struct Noise {
  std::uint32_t state;
  std::uint32_t next() { return (state = state * 1664525u + 1013904223u) >> 8; }
};

std::vector<std::int32_t> some_channels(Noise& noise, int channels, int percent) {
  std::vector<std::int32_t> list;
  for (int c = 0; c < channels; ++c)
    if (static_cast<int>(noise.next() % 100) < percent || c == channels - 1) list.push_back(c);
  return list;
}

// The codes and sums that one small convolution gives.
std::vector<std::uint8_t> small_case(const Int8Kernels& kernels, const Int8Shape& s, const Int8Algorithm* algorithm, int percent) {
  Noise noise{12345u + static_cast<std::uint32_t>(s.in_channels * 7 + s.out_channels)};
  const std::size_t count =
      static_cast<std::size_t>(s.out_channels) * static_cast<std::size_t>(s.in_channels / s.groups * s.kernel_h * s.kernel_w);
  std::vector<std::int8_t> weights(count);
  for (std::int8_t& w : weights) w = static_cast<std::int8_t>(static_cast<int>(noise.next() % 255) - 127);
  std::vector<float> scales(static_cast<std::size_t>(s.out_channels)), bias(scales.size());
  for (float& x : scales) x = 1e-5f * static_cast<float>(1 + noise.next() % 20);
  for (float& x : bias) x = 0.01f * static_cast<float>(static_cast<int>(noise.next() % 41) - 20);
  std::string why;
  const Int8PlanPtr plan =
      plan_int8_with(kernels, this_machine(kernels.isa).tuning, s, weights.data(), scales.data(), bias.data(), algorithm, why);
  if (plan == nullptr) return {};
  const std::vector<std::int32_t> in = some_channels(noise, s.in_channels, s.in_channels <= kImageChannels ? 100 : percent);
  const std::vector<std::int32_t> out = some_channels(noise, s.out_channels, percent);
  std::vector<std::uint8_t> input(static_cast<std::size_t>(pixels_size(s.input, s.in_channels, static_cast<int>(in.size()))));
  for (std::uint8_t& q : input) q = static_cast<std::uint8_t>(noise.next());
  fill_padding(input.data(), s.input, pixel_bytes(s.in_channels, static_cast<int>(in.size())), s.in.zero);
  std::vector<std::uint8_t> output(static_cast<std::size_t>(pixels_size(s.output, s.out_channels, static_cast<int>(out.size()))));
  std::vector<float> gain(out.size());
  for (float& x : gain) x = 0.5f + 0.001f * static_cast<float>(noise.next() % 1000);
  std::vector<std::int32_t> sums(out.size());
  Int8Task task;
  task.input = input.data();
  task.in_list = in.data();
  task.in_count = static_cast<int>(in.size());
  task.output = output.data();
  task.out_list = out.data();
  task.out_count = static_cast<int>(out.size());
  task.gain = gain.data();
  task.sums = sums.data();
  ConvBuffer scratch;
  scratch.allocate(int8_scratch(*plan, task.in_count, task.out_count, 1) / 4 + 1);
  std::uint8_t* const room = reinterpret_cast<std::uint8_t*>(scratch.data());
  decide_int8(*plan, task);
  begin_int8(*plan, task, room);
  for (int stage = 0; stage < int8_stages(*plan, task); ++stage)
    run_int8(*plan, task, stage, 0, int8_units(*plan, task, stage), 0, room);
  end_int8(*plan, task, room);
  // Only what is defined: the listed channels of every pixel, then the sums.
  std::vector<std::uint8_t> result;
  const int bytes = pixel_bytes(s.out_channels, task.out_count);
  for (std::int64_t pixel = 0; pixel < pixel_count(s.output); ++pixel)
    result.insert(result.end(), output.begin() + pixel * bytes, output.begin() + pixel * bytes + task.out_count);
  for (std::int32_t sum : sums)
    for (int b = 0; b < 4; ++b) result.push_back(static_cast<std::uint8_t>(static_cast<std::uint32_t>(sum) >> (8 * b)));
  return result;
}

Int8Shape small_shape(int in, int out, int kernel, int stride, int groups, int size, Function function, int in_zero) {
  Int8Shape s;
  s.in_channels = in;
  s.out_channels = out;
  s.kernel_h = s.kernel_w = kernel;
  s.stride_h = s.stride_w = stride;
  s.pad_h = s.pad_w = kernel / 2;
  s.groups = groups;
  s.input = Planes{size, size, kernel / 2};
  s.output = Planes{(size - 1) / stride + 1, (size - 1) / stride + 1, 1};
  s.in = Quantised{0.02f, in_zero};
  const bool rectified = function == Function::relu || function == Function::relu6;
  s.out = Quantised{0.03f, rectified ? 0 : 128};
  s.function = function;
  s.slope = 0.1f;
  return s;
}

// Codes after a sum of two maps with unlike lists, then a pooling of each kind, and the sums of the last.
std::vector<std::uint8_t> small_maps(const MapKernels& maps, Function function) {
  Noise noise{777u};
  constexpr int kChannels = 45;
  const std::vector<std::int32_t> a = some_channels(noise, kChannels, 60), b = some_channels(noise, kChannels, 40);
  std::vector<std::int32_t> both;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  const Planes shape{6, 7, 1}, small{3, 3, 1};
  const int count = static_cast<int>(both.size()), bytes = pixel_bytes(kChannels, count);
  const auto codes = [&](std::size_t channels) {
    std::vector<std::uint8_t> map(static_cast<std::size_t>(pixels_size(shape, kChannels, static_cast<int>(channels))));
    for (std::uint8_t& q : map) q = static_cast<std::uint8_t>(noise.next());
    return map;
  };
  const std::vector<std::uint8_t> first = codes(a.size()), second = codes(b.size());
  std::vector<std::uint8_t> memory(2 * Spread::size(count) + 64);
  const Spread spread_a(both.data(), count, a.data(), static_cast<int>(a.size()), 128, memory.data());
  const Spread spread_b(both.data(), count, b.data(), static_cast<int>(b.size()), 0, memory.data() + Spread::size(count));
  std::vector<float> factors(64);
  for (float& x : factors) x = 0.01f * static_cast<float>(1 + noise.next() % 90);
  std::vector<std::uint8_t> made(static_cast<std::size_t>(pixels_size(shape, kChannels, count))), pooled(made.size());
  Combination sum;
  sum.a = CodeMap{first.data(), pixel_bytes(kChannels, static_cast<int>(a.size())), shape, 128};
  sum.b = CodeMap{second.data(), pixel_bytes(kChannels, static_cast<int>(b.size())), shape, 0};
  sum.spread_a = &spread_a;
  sum.spread_b = &spread_b;
  sum.first = sum.second = factors.data();
  sum.function = function;
  sum.slope = 0.2f;
  sum.out = Quantised{0.7f, function == Function::relu ? 0 : 128};
  sum.to = made.data();
  sum.bytes = bytes;
  sum.count = count;
  sum.shape = shape;
  std::vector<std::int32_t> totals(64);
  sum.sums = totals.data();
  std::vector<std::uint8_t> result;
  const auto keep = [&](const std::vector<std::uint8_t>& map, Planes size) {
    for (int y = 0; y < size.height; ++y)
      for (int x = 0; x < size.width; ++x) {
        const auto pixel = map.begin() + (size.origin() + y * size.pitch() + x) * bytes;
        result.insert(result.end(), pixel, pixel + count);
      }
  };
  for (const float* shift : {static_cast<const float*>(nullptr), static_cast<const float*>(factors.data())}) {
    sum.shift = shift;
    maps.combine(sum, 0, shape.height);
    keep(made, shape);
    for (int p = 0; p < count; ++p)
      for (int b8 = 0; b8 < 4; ++b8) result.push_back(static_cast<std::uint8_t>(totals[static_cast<std::size_t>(p)] >> (8 * b8)));
  }
  const CodeMap whole{made.data(), bytes, shape, sum.out.zero};
  for (Pool kind : {Pool::max, Pool::average}) {
    maps.pool(whole, count, PoolShape{{3, 3, 2, 2, 1, 1, 1, 1}, 0, true}, kind, pooled.data(), bytes, small, 0, small.height);
    keep(pooled, small);
  }
  std::vector<CodeSums> sums(static_cast<std::size_t>(count));
  for (bool only_sums : {false, true}) {
    maps.sum(whole, 0, count, only_sums, sums.data());
    for (const CodeSums& s : sums)
      for (std::int64_t value : {s.sum, s.magnitude, only_sums ? 0 : s.squares, only_sums ? 0 : static_cast<std::int64_t>(s.most)})
        for (int b8 = 0; b8 < 8; ++b8) result.push_back(static_cast<std::uint8_t>(static_cast<std::uint64_t>(value) >> (8 * b8)));
  }
  // Images of 3 channels and of others.
  for (int channels : {3, 2}) {
    const Planes picture{3, 19, 1};
    std::vector<float> values(static_cast<std::size_t>(channels) * 3 * 19);
    for (float& x : values) x = 0.01f * static_cast<float>(static_cast<int>(noise.next() % 601) - 300);
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(pixels_size(picture, channels, channels)));
    maps.import_image(values.data(), channels, Quantised{0.02f, 128}, codes.data(), channels, picture);
    result.insert(result.end(), codes.begin(), codes.end());
  }
  return result;
}

}  // namespace

bool int8_kernels_agree(const Int8Kernels& kernels) {
  const Int8Kernels& plain = int8_kernels_baseline();
  const auto same = [&](const Int8Shape& s, const Int8Algorithm* algorithm, int percent) {
    const std::vector<std::uint8_t> wanted = small_case(plain, s, algorithm, percent);
    return !wanted.empty() && wanted == small_case(kernels, s, algorithm, percent);
  };
  bool good = true;
  for (Function f : {Function::none, Function::relu, Function::leaky_relu, Function::silu})
    good = good && small_maps(plain.maps, f) == small_maps(kernels.maps, f);
  for (int percent : {100, 55}) {
    for (Function f : {Function::none, Function::relu, Function::relu6, Function::silu, Function::gelu, Function::hardswish,
                       Function::leaky_relu})
      good = good && same(small_shape(13, 42, 1, 1, 1, 5, f, 128), &kInt8Direct, percent);
    good = good && same(small_shape(3, 24, 3, 1, 1, 9, Function::relu, 128), &kInt8Direct, percent);
    good = good && same(small_shape(37, 90, 3, 2, 1, 9, Function::relu, 0), &kInt8Direct, percent);
    good = good && same(small_shape(37, 90, 3, 1, 1, 9, Function::relu, 0), &kInt8Winograd, percent);
    good = good && same(small_shape(40, 24, 3, 1, 1, 8, Function::none, 128), &kInt8Winograd, percent);
    good = good && same(small_shape(24, 36, 3, 1, 4, 6, Function::relu, 0), &kInt8Direct, percent);
    good = good && same(small_shape(27, 27, 3, 1, 27, 7, Function::hardswish, 128), &kInt8Depthwise, percent);
  }
  return good;
}

const Int8Kernels& first_that_agrees(const Int8Kernels* const* tables, int count) {
  for (int i = 0; i + 1 < count; ++i)
    if (int8_kernels_agree(*tables[i])) return *tables[i];
  return *tables[count - 1];
}

std::vector<const Int8Kernels*> int8_tables(Isa wanted) {
  std::vector<const Int8Kernels*> tables;
#if PENSTOCK_X86
#if PENSTOCK_X86_512
  const bool words = wanted == Isa::avx512 && __builtin_cpu_supports("avx512bw");
  const bool vnni = words && __builtin_cpu_supports("avx512vnni");
  if (vnni && __builtin_cpu_supports("avx512vbmi")) tables.push_back(&int8_kernels_avx512_vbmi());
  if (vnni) tables.push_back(&int8_kernels_avx512_vnni());
  if (words) tables.push_back(&int8_kernels_avx512());
#endif
  if (wanted != Isa::baseline) tables.push_back(&int8_kernels_avx2());
#elif PENSTOCK_ARM64
  if (wanted == Isa::neon && cpu_has_matrix_products()) tables.push_back(&int8_kernels_neon_matrix());
  if (wanted == Isa::neon && cpu_has_dot_products()) tables.push_back(&int8_kernels_neon_dot());
  if (wanted == Isa::neon) tables.push_back(&int8_kernels_neon());
#endif
  tables.push_back(&int8_kernels_baseline());
  return tables;
}

const Int8Kernels& int8_kernels(Isa wanted) {
  static std::once_flag once[kIsaCount];
  static const Int8Kernels* chosen[kIsaCount];
  const int index = static_cast<int>(wanted);
  std::call_once(once[index], [&] {
    const std::vector<const Int8Kernels*> tables = int8_tables(wanted);
    chosen[index] = &first_that_agrees(tables.data(), static_cast<int>(tables.size()));
  });
  return *chosen[index];
}

}  // namespace penstock
