// The programs that fuzz_program.cpp changes: between them, every kind of operation in every layout.
#pragma once
#include <cstring>
#include <random>
#include <vector>

#include "run/runtime.h"

namespace penstock {

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

  int pixels(int channels, int height, int width, int halo) {
    const Row row{0, static_cast<int>(Layout::pixels), channels, height, width, halo, next_, 0, 0};
    arrays.tensors.insert(arrays.tensors.end(), row.begin(), row.end());
    next_ += (pixels_floats(Planes{height, width, halo}, channels) + 15) / 16 * 16;
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
inline Arrays base_program(int height, int width) {
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
inline Arrays separable_program(int height, int width, bool in_pixels) {
  Writer w;
  const auto map = [&](int channels, int rows, int columns, int halo) {
    return in_pixels ? w.pixels(channels, rows, columns, halo) : w.tensor(true, channels, rows, columns, halo);
  };
  const int low = (height + 1) / 2, narrow = (width + 1) / 2;
  const int image = w.tensor(true, 3, height, width, 1);
  w.op(OpKind::import_image, -1, -1, image, Function::none, false, false, {});
  const int a = map(20, height, width, 2);
  w.conv(image, a, 3, 20, 3, 1, 1, 1, 1, Function::relu6, true);
  const int b = map(20, low, narrow, 0), c = map(20, low, narrow, 1);
  w.conv(a, b, 20, 20, 5, 2, 2, 1, 20, Function::silu, false, -1, 1, OpKind::depthwise);
  w.conv(a, c, 20, 20, 3, 2, 1, 1, 20, Function::none, false, -1, 1, OpKind::depthwise);
  const int sum = map(20, low, narrow, 0);
  w.op(OpKind::add, b, c, sum, Function::leaky_relu, false, false, {});
  const int pooled = map(20, low, narrow, 0);
  w.op(OpKind::pool, sum, -1, pooled, Function::none, false, false, {0, 3, 3, 1, 1, 1, 1, 1, 1, 0, 1});
  const int normed = map(20, low, narrow, 0);
  w.op(OpKind::affine, pooled, -1, normed, Function::sigmoid, false, false, {w.weights(20), w.weights(20)});
  const int squeezed = w.tensor(false, 20, 1, 1, 0);
  w.op(OpKind::adaptive_pool, normed, -1, squeezed, Function::none, false, false, {1});
  const int factors = w.tensor(false, 20, 1, 1, 0);
  w.op(OpKind::linear, squeezed, -1, factors, Function::sigmoid, true, false, {w.weights(400), w.weights(20)});
  const int scaled = map(20, low, narrow, 0);
  w.op(OpKind::scale, normed, factors, scaled, Function::none, false, false, {});
  const int mixed = map(12, low, narrow, 0);
  w.conv(scaled, mixed, 20, 12, 1, 1, 0, 1, 1, Function::none, true, -1, 3);
  const int whole = map(20, low, narrow, 1);
  w.op(OpKind::spread, scaled, -1, whole, Function::none, false, false, {});
  const int wide = map(12, low, narrow, 0);
  w.conv(whole, wide, 20, 12, 3, 1, 1, 1, 1, Function::relu, true);
  const int both = map(12, low, narrow, 0);
  w.op(OpKind::add, mixed, wide, both, Function::none, false, false, {});
  int result = both;
  if (in_pixels) {
    result = w.tensor(true, 12, low, narrow, 0);
    w.op(OpKind::pack, both, -1, result, Function::none, false, false, {});
  }
  w.op(OpKind::export_result, result, -1, -1, Function::none, false, false, {});
  return w.arrays;
}

// The same with channels in the lanes: every operation that such maps have.
inline Arrays pixels_program(int height, int width) {
  Writer w;
  const int low = (height + 1) / 2, narrow = (width + 1) / 2;
  const int image = w.tensor(true, 3, height, width, 1);
  w.op(OpKind::import_image, -1, -1, image, Function::none, false, false, {});
  const int a = w.pixels(24, height, width, 1);
  w.conv(image, a, 3, 24, 3, 1, 1, 1, 1, Function::relu, true);
  const int b = w.pixels(24, height, width, 0);
  w.conv(a, b, 24, 24, 3, 1, 1, 1, 3, Function::silu, true, -1, 2);
  const int sum = w.pixels(24, height, width, 1);
  w.op(OpKind::add, a, b, sum, Function::relu, false, false, {});
  const int c = w.pixels(40, low, narrow, 0);
  w.conv(sum, c, 24, 40, 3, 2, 1, 1, 1, Function::hardswish, true);
  const int pooled = w.pixels(24, low, narrow, 0);
  w.op(OpKind::pool, sum, -1, pooled, Function::none, false, false, {0, 3, 3, 2, 2, 1, 1, 1, 1, 0, 1});
  const int both = w.pixels(64, low, narrow, 0);
  const std::int64_t parts = static_cast<std::int64_t>(w.arrays.args.size());
  w.arrays.args.insert(w.arrays.args.end(), {c, pooled});
  w.op(OpKind::concat, c, -1, both, Function::none, false, false, {parts, 2});
  const int deep = w.pixels(64, low, narrow, 0);
  w.conv(both, deep, 64, 64, 5, 1, 2, 1, 64, Function::relu6, false);
  const int normed = w.pixels(64, low, narrow, 0);
  w.op(OpKind::affine, deep, -1, normed, Function::gelu_tanh, false, false, {w.weights(64), w.weights(64)});
  const int squeezed = w.tensor(false, 64, 1, 1, 0);
  w.op(OpKind::adaptive_pool, normed, -1, squeezed, Function::none, false, false, {1});
  const int factors = w.tensor(false, 64, 1, 1, 0);
  w.op(OpKind::linear, squeezed, -1, factors, Function::sigmoid, true, false, {w.weights(64 * 64), w.weights(64)});
  const int scaled = w.pixels(64, low, narrow, 0);
  w.op(OpKind::scale, normed, factors, scaled, Function::none, false, false, {});
  const int thin = w.pixels(24, low, narrow, 0);
  w.conv(scaled, thin, 64, 24, 1, 1, 0, 1, 1, Function::none, true);
  const int planes = w.tensor(true, 24, low, narrow, 1);
  w.op(OpKind::pack, thin, -1, planes, Function::none, false, false, {});
  const int mixed = w.tensor(true, 12, low, narrow, 0);
  w.conv(planes, mixed, 24, 12, 3, 1, 1, 1, 1, Function::relu, true);
  const int again = w.pixels(12, low, narrow, 1);
  w.op(OpKind::pack, mixed, -1, again, Function::none, false, false, {});
  const int result = w.tensor(false, 12, 1, 1, 0);
  w.op(OpKind::adaptive_pool, again, -1, result, Function::none, false, false, {0});
  w.op(OpKind::export_result, result, -1, -1, Function::none, false, false, {});
  return w.arrays;
}

// The same as base_program with quantised maps: every operation that they have.
inline Arrays int8_program(int height, int width) {
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

}  // namespace penstock
