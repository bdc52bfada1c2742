// Programs with numbers changed at random: each must be refused, or run within bounds.
//
//     fuzz_program [mutations] [seed]
//
// Meant to be built with AddressSanitizer and UBSan (`make sanitize`): a read or write out of bounds ends it.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "run/runtime.h"

namespace {

using namespace penstock;
using Row = std::vector<std::int64_t>;

struct Arrays {
  std::vector<std::int64_t> tensors, ops, args;
  std::vector<float> scalars, weights;
  std::int64_t layers = 0, knobs = 0;
};

// Writes a program down; tensors lie one after another.
class Writer {
 public:
  Arrays arrays;

  int tensor(bool planes, int channels, int height, int width, int halo) {
    const Planes shape{height, width, halo};
    const std::int64_t floats = (planes ? shape.stride() : 1) * channels;
    const Row row{0, static_cast<int>(planes ? Layout::planes : Layout::vector), channels, height, width, halo, next_, 0, 0};
    arrays.tensors.insert(arrays.tensors.end(), row.begin(), row.end());
    next_ += (floats + 15) / 16 * 16;
    return tensors_++;
  }

  int codes(int channels, int height, int width, int halo, float scale, int zero) {
    std::uint32_t bits;
    std::memcpy(&bits, &scale, sizeof bits);
    const std::int64_t floats = (pixels_size(Planes{height, width, halo}, channels, channels) + 3) / 4;
    const Row row{
        static_cast<int>(Element::code8), static_cast<int>(Layout::pixels), channels, height, width, halo, next_, zero, bits};
    arrays.tensors.insert(arrays.tensors.end(), row.begin(), row.end());
    next_ += (floats + 15) / 16 * 16;
    return tensors_++;
  }

  // int8 weights, four in the place of a float.
  std::int64_t bytes(int count) {
    const std::int64_t at = static_cast<std::int64_t>(arrays.weights.size());
    for (int i = 0; i < (count + 3) / 4; ++i) {
      const std::uint32_t word = random_();
      float four;
      std::memcpy(&four, &word, sizeof four);
      arrays.weights.push_back(four);
    }
    return at;
  }

  // From codes to codes; kernel, stride and pad alike on both axes.
  void conv_codes(int in, int out, int cin, int cout, int k, int stride, int pad, int groups, Function f, bool gated,
                  int summary = 0) {
    const std::int64_t kernel = bytes(cout * cin / groups * k * k), bias = weights(cout);
    const std::int64_t phi = gated ? weights(cin * cout) : -1, rho = gated ? weights(cout) : -1;
    op(OpKind::conv, in, -1, out, f, true, gated,
       {k, k, stride, stride, pad, pad, 1, 1, groups, static_cast<int>(WeightFormat::code_filters), kernel, bias, phi, rho, summary,
        0, 0, -1, weights(cout)});
  }

  std::int64_t weights(int count) {
    const std::int64_t at = static_cast<std::int64_t>(arrays.weights.size());
    for (int i = 0; i < count; ++i) arrays.weights.push_back(spread_(random_));
    return at;
  }

  void op(OpKind kind, int in, int in2, int out, Function function, bool counted, bool gated, const Row& fields) {
    Row row{static_cast<int>(kind),     in, in2, out, static_cast<int>(function), counted ? arrays.layers++ : -1,
            gated ? arrays.knobs++ : -1};
    row.insert(row.end(), fields.begin(), fields.end());
    row.resize(kOpFields, 0);
    arrays.ops.insert(arrays.ops.end(), row.begin(), row.end());
    arrays.scalars.insert(arrays.scalars.end(), {0.1f, 0.01f});
  }

  // rho; of a threshold_conv, its threshold too.
  std::int64_t saliency_bias(int count, OpKind kind) {
    const std::int64_t at = weights(count);
    if (kind == OpKind::threshold_conv) arrays.weights.push_back(0.4f);
    return at;
  }

  // kernel, stride, pad, dilation alike on both axes
  void conv(int in, int out, int cin, int cout, int k, int stride, int pad, int dilation, int groups, Function f, bool gated,
            int skip = -1, int levels = 1, OpKind kind = OpKind::conv) {
    std::int64_t first = -1;
    if (levels > 1) {
      first = static_cast<std::int64_t>(arrays.args.size());
      arrays.args.insert(arrays.args.end(), {levels, weights(levels * cout), weights(levels * cout)});
      for (int level = 1; level < levels; ++level) arrays.args.push_back(cout * level / levels);
    }
    const Row fields{k,
                     k,
                     stride,
                     stride,
                     pad,
                     pad,
                     dilation,
                     dilation,
                     groups,
                     0,
                     weights(cout * cin / groups * k * k),
                     weights(cout),
                     gated ? weights(cin * cout) : -1,
                     gated ? saliency_bias(levels * cout, kind) : -1,
                     0,
                     skip >= 0 ? 1 : 0,
                     0,
                     first,
                     -1};
    op(kind, in, skip, out, f, true, gated, fields);
  }

 private:
  int tensors_ = 0;
  std::int64_t next_ = 0;
  std::mt19937 random_{7};
  std::uniform_real_distribution<float> spread_{-0.5f, 1.0f};
};

// Every kind of operation but those of separable_program, for images of this size.
Arrays base_program(int height, int width) {
  Writer w;
  const int low = (height + 1) / 2, narrow = (width + 1) / 2;
  const int image = w.tensor(true, 3, height, width, 1);
  w.op(OpKind::import_image, -1, -1, image, Function::none, false, false, {});
  const int a = w.tensor(true, 8, height, width, 2);
  w.conv(image, a, 3, 8, 3, 1, 1, 1, 1, Function::relu, true);
  const int b = w.tensor(true, 8, height, width, 0);
  w.conv(a, b, 8, 8, 3, 1, 2, 2, 2, Function::silu, true, -1, 3);
  const int sum = w.tensor(true, 8, height, width, 1);
  w.op(OpKind::add, a, b, sum, Function::relu, false, false, {});
  const int c = w.tensor(true, 12, low, narrow, 0);
  w.conv(sum, c, 8, 12, 3, 2, 1, 1, 1, Function::gelu, true, -1, 1, OpKind::threshold_conv);
  const int pooled = w.tensor(true, 8, low, narrow, 0);
  w.op(OpKind::pool, sum, -1, pooled, Function::none, false, false, {0, 3, 3, 2, 2, 1, 1, 1, 1, 0, 1});
  const int both = w.tensor(true, 20, low, narrow, 0);
  const std::int64_t parts = static_cast<std::int64_t>(w.arrays.args.size());
  w.arrays.args.insert(w.arrays.args.end(), {c, pooled});
  w.op(OpKind::concat, c, -1, both, Function::none, false, false, {parts, 2});
  const int normed = w.tensor(true, 20, low, narrow, 1);
  w.op(OpKind::affine, both, -1, normed, Function::leaky_relu, false, false, {w.weights(20), w.weights(20)});
  const int wide = w.tensor(true, 20, low, narrow, 1);
  w.conv(normed, wide, 20, 20, 3, 1, 1, 1, 20, Function::hardswish, false);
  const int mixed = w.tensor(true, 20, low, narrow, 1);
  w.conv(wide, mixed, 20, 20, 1, 1, 0, 1, 1, Function::none, true, normed, 2);
  const int layered = w.tensor(true, 20, low, narrow, 1);
  w.op(OpKind::channel_norm, mixed, -1, layered, Function::none, false, false, {w.weights(20), w.weights(20)});
  const int squeezed = w.tensor(false, 20, 1, 1, 0);
  w.op(OpKind::adaptive_pool, layered, -1, squeezed, Function::none, false, false, {1});
  const int factors = w.tensor(false, 20, 1, 1, 0);
  w.op(OpKind::linear, squeezed, -1, factors, Function::sigmoid, true, false, {w.weights(400), w.weights(20)});
  const int scaled = w.tensor(true, 20, low, narrow, 0);
  w.op(OpKind::scale, layered, factors, scaled, Function::none, false, false, {});
  const int few = w.tensor(true, 20, 2, 3, 0);
  w.op(OpKind::adaptive_pool, scaled, -1, few, Function::none, false, false, {0});
  const int result = w.tensor(false, 10, 1, 1, 0);
  w.op(OpKind::linear, few, -1, result, Function::none, true, false, {w.weights(10 * 120), w.weights(10)});
  const int spread = w.tensor(true, 10, 1, 1, 1);
  w.op(OpKind::pack, result, -1, spread, Function::none, false, false, {});
  w.op(OpKind::export_result, spread, -1, -1, Function::none, false, false, {});
  return w.arrays;
}

// Depthwise convolutions that keep lists, and every operation that reads constants.
Arrays separable_program(int height, int width) {
  Writer w;
  const int low = (height + 1) / 2, narrow = (width + 1) / 2;
  const int image = w.tensor(true, 3, height, width, 1);
  w.op(OpKind::import_image, -1, -1, image, Function::none, false, false, {});
  const int a = w.tensor(true, 20, height, width, 2);
  w.conv(image, a, 3, 20, 3, 1, 1, 1, 1, Function::relu6, true);
  const int b = w.tensor(true, 20, low, narrow, 0), c = w.tensor(true, 20, low, narrow, 1);
  w.conv(a, b, 20, 20, 5, 2, 2, 1, 20, Function::silu, false, -1, 1, OpKind::depthwise);
  w.conv(a, c, 20, 20, 3, 2, 1, 1, 20, Function::none, false, -1, 1, OpKind::depthwise);
  const int sum = w.tensor(true, 20, low, narrow, 0);
  w.op(OpKind::add, b, c, sum, Function::leaky_relu, false, false, {});
  const int pooled = w.tensor(true, 20, low, narrow, 0);
  w.op(OpKind::pool, sum, -1, pooled, Function::none, false, false, {0, 3, 3, 1, 1, 1, 1, 1, 1, 0, 1});
  const int normed = w.tensor(true, 20, low, narrow, 0);
  w.op(OpKind::affine, pooled, -1, normed, Function::sigmoid, false, false, {w.weights(20), w.weights(20)});
  const int squeezed = w.tensor(false, 20, 1, 1, 0);
  w.op(OpKind::adaptive_pool, normed, -1, squeezed, Function::none, false, false, {1});
  const int factors = w.tensor(false, 20, 1, 1, 0);
  w.op(OpKind::linear, squeezed, -1, factors, Function::sigmoid, true, false, {w.weights(400), w.weights(20)});
  const int scaled = w.tensor(true, 20, low, narrow, 0);
  w.op(OpKind::scale, normed, factors, scaled, Function::none, false, false, {});
  const int mixed = w.tensor(true, 12, low, narrow, 0);
  w.conv(scaled, mixed, 20, 12, 1, 1, 0, 1, 1, Function::none, true, -1, 3);
  const int whole = w.tensor(true, 20, low, narrow, 1);
  w.op(OpKind::spread, scaled, -1, whole, Function::none, false, false, {});
  const int wide = w.tensor(true, 12, low, narrow, 0);
  w.conv(whole, wide, 20, 12, 3, 1, 1, 1, 1, Function::relu, true);
  const int both = w.tensor(true, 12, low, narrow, 0);
  w.op(OpKind::add, mixed, wide, both, Function::none, false, false, {});
  w.op(OpKind::export_result, both, -1, -1, Function::none, false, false, {});
  return w.arrays;
}

// The same as base_program with quantised maps: every operation that they have.
Arrays int8_program(int height, int width) {
  Writer w;
  const int low = (height + 1) / 2, narrow = (width + 1) / 2;
  const int image = w.codes(3, height, width, 1, 0.02f, 128);
  w.op(OpKind::import_image, -1, -1, image, Function::none, false, false, {});
  const int a = w.codes(24, height, width, 1, 0.05f, 0);
  w.conv_codes(image, a, 3, 24, 3, 1, 1, 1, Function::relu, true);
  const int b = w.codes(24, height, width, 1, 0.04f, 128);
  w.conv_codes(a, b, 24, 24, 3, 1, 1, 1, Function::none, true, 1);
  const int sum = w.codes(24, height, width, 2, 0.06f, 0);
  w.op(OpKind::add, a, b, sum, Function::relu, false, false, {});
  const int c = w.codes(12, low, narrow, 0, 0.03f, 128);
  w.conv_codes(sum, c, 24, 12, 3, 2, 1, 2, Function::silu, true);
  const int pooled = w.codes(24, low, narrow, 0, 0.06f, 0);
  w.op(OpKind::pool, sum, -1, pooled, Function::none, false, false, {0, 3, 3, 2, 2, 1, 1, 1, 1, 0, 1});
  const int both = w.codes(36, low, narrow, 1, 0.06f, 128);
  const std::int64_t parts = static_cast<std::int64_t>(w.arrays.args.size());
  w.arrays.args.insert(w.arrays.args.end(), {c, pooled});
  w.op(OpKind::concat, c, -1, both, Function::none, false, false, {parts, 2});
  const int deep = w.codes(36, low, narrow, 1, 0.06f, 128);
  w.conv_codes(both, deep, 36, 36, 3, 1, 1, 36, Function::hardswish, false);
  const int normed = w.codes(36, low, narrow, 1, 0.05f, 0);
  w.op(OpKind::affine, deep, -1, normed, Function::relu, false, false, {w.weights(36), w.weights(36)});
  const int squeezed = w.tensor(false, 36, 1, 1, 0);
  w.op(OpKind::adaptive_pool, normed, -1, squeezed, Function::none, false, false, {1});
  const int factors = w.tensor(false, 36, 1, 1, 0);
  w.op(OpKind::linear, squeezed, -1, factors, Function::sigmoid, true, false, {w.weights(36 * 36), w.weights(36)});
  const int scaled = w.codes(36, low, narrow, 1, 0.05f, 0);
  w.op(OpKind::scale, normed, factors, scaled, Function::none, false, false, {});
  const int planes = w.tensor(true, 36, low, narrow, 1);
  w.op(OpKind::pack, scaled, -1, planes, Function::none, false, false, {});
  const int mixed = w.tensor(true, 12, low, narrow, 1);
  w.conv(planes, mixed, 36, 12, 3, 1, 1, 1, 1, Function::relu, true);
  const int again = w.codes(12, low, narrow, 0, 0.1f, 0);
  w.op(OpKind::pack, mixed, -1, again, Function::none, false, false, {});
  w.op(OpKind::export_result, again, -1, -1, Function::none, false, false, {});
  return w.arrays;
}

// Convolutions at listed pixels: of a fixed list, and where a map says.
Arrays listed_program(int height, int width) {
  Writer w;
  const int low = (height + 1) / 2, narrow = (width + 1) / 2;
  const int image = w.tensor(true, 3, height, width, 1);
  w.op(OpKind::import_image, -1, -1, image, Function::none, false, false, {});
  const int a = w.tensor(true, 8, height, width, 1);
  const std::int64_t pixels = static_cast<std::int64_t>(w.arrays.args.size()), count = height * width / 2;
  for (std::int64_t i = 0; i < count; ++i) w.arrays.args.push_back(2 * i);
  const std::int64_t nearest = static_cast<std::int64_t>(w.arrays.args.size());
  for (std::int64_t i = 0; i < height * width; ++i) w.arrays.args.push_back(i / 2 < count ? i / 2 : count - 1);
  w.op(OpKind::listed, image, -1, a, Function::silu, true, false,
       {3, 3, 1, 1, 1, 1, 1, 1, w.weights(8 * 27), w.weights(8), -1, pixels, count, nearest});
  const int b = w.tensor(true, 12, height, width, 1);
  w.conv(a, b, 8, 12, 3, 1, 1, 1, 1, Function::relu, true);
  const int map = w.tensor(true, 1, low, narrow, 0);
  w.conv(b, map, 12, 1, 1, 2, 0, 1, 1, Function::relu, false);
  const int c = w.tensor(true, 7, low, narrow, 0);
  w.op(OpKind::listed, b, map, c, Function::relu, true, false,
       {3, 3, 2, 2, 1, 1, 1, 1, w.weights(7 * 12 * 9), -1, w.weights(7), -1, 0, -1});
  w.op(OpKind::export_result, c, -1, -1, Function::none, false, false, {});
  return w.arrays;
}

std::int64_t other_number(std::int64_t value, std::mt19937_64& random) {
  static const std::int64_t kOdd[] = {-1,      0,         1,         2,         3,         16,        255,       65535, 65536,
                                      1 << 20, 1LL << 30, 1LL << 31, 1LL << 32, 1LL << 62, INT64_MAX, INT64_MIN, -16};
  switch (random() % 5) {
    case 0: return static_cast<std::int64_t>(static_cast<std::uint64_t>(value) + 1);  // wraps where it must
    case 1: return static_cast<std::int64_t>(static_cast<std::uint64_t>(value) - 1);
    case 2: return static_cast<std::int64_t>(static_cast<std::uint64_t>(value) + random() % 33 - 16);
    case 3: return kOdd[random() % (sizeof kOdd / sizeof *kOdd)];
    default: return value ^ (std::int64_t{1} << (random() % 63));
  }
}

void mutate(Arrays& a, std::mt19937_64& random) {
  const auto change = [&](std::vector<std::int64_t>& v) {
    std::int64_t& x = v[random() % v.size()];
    x = other_number(x, random);
  };
  switch (random() % 12) {
    case 0:
    case 1:
    case 2:
    case 3: change(a.tensors); break;
    case 4:
    case 5:
    case 6:
    case 7:
    case 8: change(a.ops); break;
    case 9: change(a.args); break;
    case 10: {
      static const float kOdd[] = {0.0f, -1.0f, 1e30f, -1e30f, __builtin_inff(), __builtin_nanf("")};
      auto& v = random() % 2 ? a.scalars : a.weights;
      v[random() % v.size()] = kOdd[random() % 6];
      break;
    }
    default:
      if (random() % 3 == 0) a.weights.resize(random() % (a.weights.size() + 1));
      else if (random() % 2) a.layers = other_number(a.layers, random);
      else a.knobs = other_number(a.knobs, random);
  }
}

// True when the program ran.
bool try_program(const Arrays& a, Isa isa, int threads) {
  RawProgram raw;
  raw.format = kFormat;
  raw.tensors = a.tensors.data();
  raw.tensor_count = static_cast<std::int64_t>(a.tensors.size()) / kTensorFields;
  raw.ops = a.ops.data();
  raw.op_count = static_cast<std::int64_t>(a.ops.size()) / kOpFields;
  raw.scalars = a.scalars.data();
  raw.args = a.args.data();
  raw.arg_count = static_cast<std::int64_t>(a.args.size());
  raw.weights = a.weights.data();
  raw.weight_count = static_cast<std::int64_t>(a.weights.size());
  raw.layers = a.layers;
  raw.knobs = a.knobs;
  try {
    std::unique_ptr<Program> program = load_program(raw, this_machine(isa));
    if (program->arena_floats > (1 << 26)) return false;  // sound, but slow to run a hundred thousand times
    Runtime runtime(std::move(program), threads);
    const std::size_t images = static_cast<std::size_t>(runtime.image_floats()) * 2;
    if (images > (1u << 22) || runtime.result_floats() > (1 << 22)) return false;
    std::vector<float> image(images, 0.5f), result(static_cast<std::size_t>(runtime.result_floats()) * 2);
    std::vector<std::int32_t> winners;
    for (int channels : runtime.program().knob_channels) winners.push_back((channels + 1) / 2);
    RunRequest request;
    request.images = image.data();
    request.count = 2;
    request.winners = winners.data();
    request.results = result.data();
    runtime.run(request);
    return true;
  } catch (const ProgramError&) {
    return false;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int mutations = argc > 1 ? std::atoi(argv[1]) : 20000;
  std::mt19937_64 random(argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 1u);
  // The second one's image is read where the caller has it.
  const Arrays bases[] = {base_program(11, 9), base_program(12, 8), int8_program(11, 9), separable_program(11, 9),
                          listed_program(11, 9)};
  std::vector<Isa> sets;
  for (int i = 0; i < kIsaCount; ++i)
    if (isa_available(static_cast<Isa>(i))) sets.push_back(static_cast<Isa>(i));
  for (const Arrays& base : bases)
    for (Isa isa : sets)
      if (!try_program(base, isa, 2)) return std::printf("the program itself was refused\n"), 1;
  int ran = 0;
  for (int n = 0; n < mutations; ++n) {
    Arrays changed = bases[n % 5];
    for (std::uint64_t changes = 1 + random() % 3; changes > 0; --changes) mutate(changed, random);
    ran += try_program(changed, sets[random() % sets.size()], n % 50 == 0 ? 2 : 1);
  }
  std::printf("%d programs changed: %d refused, %d ran within bounds\n", mutations, mutations - ran, ran);
  return 0;
}
