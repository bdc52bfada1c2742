// Channels that are not stored but hold a constant: what a depthwise convolution makes of the channels that gates skipped.
//
// Such a channel enters the convolution as zeros and leaves it as function(bias), all over its map and at the borders too. It stays
// in no list: readers take its number from Live::fill, and a 1x1 convolution adds its part to the bias.
#include <cmath>

#include "run/walk.h"

namespace penstock {
namespace {

// ss(x) of a channel that is `value` all over, as kernels' `summarise` has it.
float summary_of_constant(float value, Summary kind, double area) {
  const double magnitude = std::fabs(static_cast<double>(value));
  switch (kind) {
    case Summary::l1: return static_cast<float>(magnitude);
    case Summary::l2: return static_cast<float>(magnitude / std::sqrt(area));
    case Summary::linf: return static_cast<float>(magnitude / area);
    default: return 0.0f;
  }
}

}  // namespace

// One number a channel: those of the stored channels, then the constants of the others as far as they are not zero.
Runtime::Walk::Row Runtime::Walk::with_constants(const Live& in, int channels, const float* stored) {
  if (in.fill == nullptr) return {stored, in.list, in.count};
  float* const x = context_.constants.data();
  std::int32_t* const list = context_.merged.data();
  std::copy(stored, stored + in.count, x);
  std::copy(in.list, in.list + in.count, list);
  int n = in.count;
  for (int c = 0, p = 0; c < channels; ++c) {
    if (p < in.count && in.list[p] == c) {
      ++p;
      continue;
    }
    if (in.fill[c] == 0.0f) continue;
    x[n] = in.fill[c];
    list[n++] = c;
  }
  return {x, list, n};
}

Runtime::Walk::Row Runtime::Walk::with_summaries(const Op& op, const Live& in) {
  const Tensor& t = tensor(op.in);
  if (in.fill && t.is_codes()) return with_code_summaries(op, in);
  const double area = static_cast<double>(t.shape.height) * t.shape.width;
  const Row row = with_constants(in, t.channels, summaries(op, in));
  for (int p = in.count; p < row.count; ++p)
    context_.constants[static_cast<std::size_t>(p)] = summary_of_constant(row.x[p], op.summary, area);
  return row;
}

// The same of codes, in the order of the channels, so that the sum is what it would be if all of them were stored.
Runtime::Walk::Row Runtime::Walk::with_code_summaries(const Op& op, const Live& in) {
  const Tensor& t = tensor(op.in);
  const std::int64_t area = static_cast<std::int64_t>(t.shape.height) * t.shape.width;
  const float* const stored = summaries(op, in);
  float* const x = context_.constants.data();
  std::int32_t* const list = context_.merged.data();
  int n = 0;
  for (int c = 0, p = 0; c < t.channels; ++c) {
    if (p < in.count && in.list[p] == c) {
      x[n] = stored[p++];
    } else {
      const std::int64_t value = static_cast<std::int64_t>(in.fill[c]), magnitude = std::abs(value);
      if (value == 0) continue;
      CodeSums all;
      all.sum = area * value;
      all.magnitude = area * magnitude;
      all.squares = area * value * value;
      all.most = static_cast<std::int32_t>(magnitude);
      x[n] = summary_of(all, op.summary, area, t.quantised.scale);
    }
    list[n++] = c;
  }
  return {x, list, n};
}

// The bias of a 1x1 convolution together with what the constants of its input contribute, for the outputs that are computed.
const float* Runtime::Walk::add_to_bias(const Op& op, const Live& in, const Outputs& outputs) {
  const int channels = tensor(op.in).channels;
  const float* const before = outputs.bias ? outputs.bias : op.bias;
  float* const x = context_.constants.data();
  std::copy(in.fill, in.fill + channels, x);
  for (int p = 0; p < in.count; ++p) x[in.list[p]] = 0.0f;
  if (std::all_of(x, x + channels, [](float value) { return value == 0.0f; })) return before;
  float* const bias = context_.bias.data();
  each(outputs.count, std::int64_t{outputs.count} * channels / 2, [&](int p, int) {
    const int o = outputs.list[p];
    kernels_.dot_blocks(x, nullptr, 1, channels, op.weights, before, o, o + 1, channels, bias);
  });
  return bias;
}

void Runtime::Walk::fill_affine(const Op& op) {
  const float* const from = live(op.in).fill;
  float* const fill = own_fill(op.out);
  const int channels = tensor(op.out).channels;
  for (int c = 0; c < channels; ++c) fill[c] = from[c] * (op.scale ? op.scale[c] : 1.0f) + (op.shift ? op.shift[c] : 0.0f);
  kernels_.apply(fill, channels, op.function, op.slope, fill);
  live(op.out).fill = fill;
}

void Runtime::Walk::fill_sum(const Op& op) {
  const float *const a = live(op.in).fill, *const b = live(op.in2).fill;
  float* const fill = own_fill(op.out);
  const int channels = tensor(op.out).channels;
  for (int c = 0; c < channels; ++c) fill[c] = (a ? a[c] : 0.0f) + (b ? b[c] : 0.0f);
  kernels_.apply(fill, channels, op.function, op.slope, fill);
  live(op.out).fill = fill;
}

void Runtime::Walk::fill_product(const Op& op, const float* by_channel) {
  const float* const from = live(op.in).fill;
  float* const fill = own_fill(op.out);
  for (int c = 0; c < tensor(op.out).channels; ++c) fill[c] = from[c] * by_channel[c];
  live(op.out).fill = fill;
}

// Of codes: what their product with one factor a channel makes of constants (docs/int8.md).
void Runtime::Walk::scale_constants(const Op& op) {
  const Quantised from = tensor(op.in).quantised, to = tensor(op.out).quantised;
  const Live &in = live(op.in), &by = live(op.in2);
  float* const fill = own_fill(op.out);
  const float inverse = 1.0f / to.scale, low = static_cast<float>(-to.zero), high = static_cast<float>(255 - to.zero);
  for (int c = 0, q = 0; c < tensor(op.out).channels; ++c) {
    while (q < by.count && by.list[q] < c) ++q;
    const float factor = q < by.count && by.list[q] == c ? by.data[q] : 0.0f;
    const float k = from.scale * factor * inverse, y = in.fill[c] * k;
    const float above = y > low ? y : low;
    fill[c] = std::nearbyint(above < high ? above : high);
  }
  live(op.out).fill = fill;
}

void Runtime::Walk::spread(const Op& op) {
  const Tensor &from = tensor(op.in), &to = tensor(op.out);
  const Live& in = live(op.in);
  Live& out = live(op.out);
  make_dense(op.out);
  std::int32_t* const places = context_.positions.data();  // of each channel among the input's planes, or -1
  for (int c = 0, p = 0; c < to.channels; ++c) places[c] = p < in.count && in.list[p] == c ? p++ : -1;
  each(to.channels, to.channels * to.step(), [&](int c, int) {
    const float* const plane = places[c] < 0 ? nullptr : in.data + places[c] * from.step();
    float* const target = out.data + c * to.step();
    const float constant = in.fill ? in.fill[c] : 0.0f;
    if (to.layout == Layout::vector) *target = plane ? *plane : constant;
    else if (plane) kernels_.affine(plane, from.shape, 1.0f, 0.0f, Function::none, 0.0f, target, to.shape);
    else fill_plane(target, to.shape, constant);
  });
}

}  // namespace penstock
