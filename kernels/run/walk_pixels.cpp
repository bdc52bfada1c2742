// Operations on maps of floats in pixels, over the channels that are stored.
#include <cmath>
#include <limits>

#include "run/walk.h"

namespace penstock {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace

bool Runtime::Walk::takes_pixels(const Op& op) const {
  return (op.in >= 0 && tensor(op.in).is_pixels()) || (op.out >= 0 && tensor(op.out).is_pixels());
}

bool Runtime::Walk::run_pixels(const Op& op) {
  switch (op.kind) {
    case OpKind::pool: pool_pixels(op); break;
    case OpKind::adaptive_pool: reduce_pixels(op); break;
    case OpKind::add: add_pixels(op); break;
    case OpKind::concat: concat_pixels(op); break;
    case OpKind::affine: affine_pixels(op); break;
    case OpKind::scale: return scale_pixels(op);
    case OpKind::spread: spread_pixels(op); break;
    default: exchange_pixels(op); break;
  }
  return true;
}

void Runtime::Walk::pool_pixels(const Op& op) {
  const Tensor &from = tensor(op.in), &to = tensor(op.out);
  const Live& in = live(op.in);
  Live& out = live(op.out);
  keep_list(op);
  clear_pixel_padding(out.data, to.shape, pixel_floats(out.count));
  const PixelPool all = {op.window,
                         pixel_at(op.in, 0, 0),
                         pixel_floats(in.count),
                         pixel_row(op.in),
                         from.shape.height,
                         from.shape.width,
                         op.pool == penstock::Pool::max,
                         pixel_at(op.out, 0, 0),
                         pixel_floats(out.count),
                         pixel_row(op.out),
                         to.shape.width,
                         (out.count + lanes_.lanes - 1) / lanes_.lanes};
  each(to.shape.height, to.floats_for(out.count), [&](int y, int) { lanes_.pool(all, y, y + 1); });
}

// To a vector: the mean or the maximum of every channel.
void Runtime::Walk::reduce_pixels(const Op& op) {
  const Planes shape = tensor(op.in).shape;
  const Live& in = live(op.in);
  Live& out = live(op.out);
  keep_list(op);
  const PixelSums all = {pixel_at(op.in, 0, 0), pixel_floats(in.count), pixel_row(op.in), shape.height, shape.width};
  float* const sums = context_.saliency.data();
  const int vectors = (in.count + lanes_.lanes - 1) / lanes_.lanes;
  const bool average = op.pool == penstock::Pool::average;
  each(vectors, tensor(op.in).floats_for(in.count),
       [&](int v, int) { lanes_.sum(all, average ? PixelSum::values : PixelSum::largest_value, nullptr, v, v + 1, sums); });
  const float area = static_cast<float>(std::int64_t{shape.height} * shape.width);
  for (int p = 0; p < in.count; ++p) out.data[p] = average ? sums[p] / area : sums[p];
}

// ss(x) of the paper.
void Runtime::Walk::summarise_pixels(int t, Summary kind, float* summaries) {
  const Planes shape = tensor(t).shape;
  const int count = live(t).count, vectors = (count + lanes_.lanes - 1) / lanes_.lanes;
  const PixelSums all = {pixel_at(t, 0, 0), pixel_floats(count), pixel_row(t), shape.height, shape.width};
  const double area = static_cast<double>(shape.height) * shape.width;
  float *const sums = context_.saliency.data(), *const centre = context_.gains.data();
  const auto sum = [&](PixelSum what, const float* middle, float* to) {
    each(vectors, tensor(t).floats_for(count), [&](int v, int) { lanes_.sum(all, what, middle, v, v + 1, to); });
  };
  switch (kind) {
    case Summary::l1: sum(PixelSum::magnitudes, nullptr, sums); break;
    case Summary::l2: sum(PixelSum::squares, nullptr, sums); break;
    case Summary::linf: sum(PixelSum::largest, nullptr, sums); break;
    case Summary::variance:
      sum(PixelSum::values, nullptr, centre);
      for (int p = 0; p < count; ++p) centre[p] = static_cast<float>(centre[p] / area);
      sum(PixelSum::squares, centre, sums);
      break;
  }
  for (int p = 0; p < count; ++p) {
    const double value = kind == Summary::l2 ? std::sqrt(static_cast<double>(sums[p])) : static_cast<double>(sums[p]);
    summaries[p] = static_cast<float>(kind == Summary::variance ? value / area / area : value / area);
  }
}

// One of the two terms of a combination. `list` holds the tensor's channels and `wanted` the result's, as the result counts them.
PixelTerm Runtime::Walk::term_of(const Op& op, int t, const std::int32_t* list, const std::int32_t* wanted, int count, int number) {
  const PixelScratch lay = pixel_scratch(tensor(op.out));
  std::int32_t* const first = reinterpret_cast<std::int32_t*>(scratch(op) + lay.first[number]);
  LanesPiece* const pieces = reinterpret_cast<LanesPiece*>(scratch(op) + lay.pieces[number]);
  const bool differ = set_spread(lanes_, list, live(t).count, wanted, count, first, pieces);
  return {pixel_at(t, 0, 0), pixel_floats(live(t).count), pixel_row(t), differ ? pieces : nullptr, first};
}

// To `channels` channels of the result, the first of which is its list's number `first`; then the operation's function.
void Runtime::Walk::combine_pixels(const Op& op, PixelCombination& what, int first, int channels) {
  const Tensor& to = tensor(op.out);
  const Live& out = live(op.out);
  if (channels == 0) return;
  const bool clamps = is_clamp(op.function);
  // The sums come with the results where a gate asks for means of magnitudes and they do not follow from the input's.
  constexpr int kMean = static_cast<int>(Summary::l1);
  const bool sums = clamps && op.kind != OpKind::concat && context_.summary_kind[static_cast<std::size_t>(op.out)] != kMean &&
                    runtime_.wanted_summaries_[static_cast<std::size_t>(op.out)] == kMean;
  if (sums) what.sums = scratch(op) + pixel_scratch(to).sums + first;
  what.sums_row = sums_pitch(out.count);
  what.low = clamps && op.function != Function::none ? 0.0f : -kInfinity;
  what.high = op.function == Function::relu6 ? 6.0f : kInfinity;
  what.to = pixel_at(op.out, 0, 0) + first;
  what.pixel = pixel_floats(out.count);
  what.row = pixel_row(op.out);
  what.width = to.shape.width;
  what.vectors = (channels + lanes_.lanes - 1) / lanes_.lanes;
  // A vector may write past the last channel, where nothing is ever read, but not past the end of a pixel.
  const int end = first + what.vectors * lanes_.lanes;
  what.last = end <= what.pixel ? lanes_.lanes : channels - (what.vectors - 1) * lanes_.lanes;
  each(to.shape.height, to.floats_for(out.count), [&](int y, int) {
    lanes_.combine(what, y, y + 1);
    for (int x = 0; !clamps && x < to.shape.width; ++x) {
      float* const pixel = pixel_at(op.out, y, x) + first;
      kernels_.apply(pixel, channels, op.function, op.slope, pixel);
    }
  });
  if (!sums) return;
  for (int p = 0; p < channels; ++p) {
    float sum = 0.0f;
    for (int y = 0; y < to.shape.height; ++y) sum += what.sums[y * what.sums_row + p];
    summary(op.out, first + p) = sum / static_cast<float>(std::int64_t{to.shape.height} * to.shape.width);
  }
  if (first + channels == out.count) note_summaries(op.out);
}

void Runtime::Walk::add_pixels(const Op& op) {
  const Live &a = live(op.in), &b = live(op.in2);
  unite_lists(op.in, op.in2, op.out);
  const Live& out = live(op.out);
  clear_pixel_padding(out.data, tensor(op.out).shape, pixel_floats(out.count));
  PixelCombination sum{};
  sum.count = 2;
  sum.terms[0] = term_of(op, op.in, a.list, out.list, out.count, 0);
  sum.terms[1] = term_of(op, op.in2, b.list, out.list, out.count, 1);
  if (a.fill || b.fill) {
    float* const shift = scratch(op) + pixel_scratch(tensor(op.out)).shift;
    std::fill(shift, shift + out.count, 0.0f);
    for (const Live* summand : {&a, &b}) add_constants(*summand, out, shift);
    sum.shift = shift;
  }
  combine_pixels(op, sum, 0, out.count);
  if (tensor(op.out).filled) fill_sum(op);
}

// Adds what `of` holds in channels that it does not store, by channel of the result.
void Runtime::Walk::add_constants(const Live& of, const Live& result, float* to) {
  if (of.fill == nullptr) return;
  for (int p = 0, q = 0; p < result.count; ++p) {
    while (q < of.count && of.list[q] < result.list[p]) ++q;
    if (q == of.count || of.list[q] != result.list[p]) to[p] += of.fill[result.list[p]];
  }
}

// Every channel is stored, constants too.
void Runtime::Walk::spread_pixels(const Op& op) {
  const Live& in = live(op.in);
  make_dense(op.out);
  const Live& out = live(op.out);
  float* const shift = scratch(op) + pixel_scratch(tensor(op.out)).shift;
  std::fill(shift, shift + out.count, 0.0f);
  add_constants(in, out, shift);
  clear_pixel_padding(out.data, tensor(op.out).shape, pixel_floats(out.count));
  PixelCombination whole{};
  whole.count = 1;
  whole.terms[0] = term_of(op, op.in, in.list, out.list, out.count, 0);
  if (in.fill) whole.shift = shift;
  combine_pixels(op, whole, 0, out.count);
}

void Runtime::Walk::concat_pixels(const Op& op) {
  const std::int32_t* const list = join_lists(op);
  const Live& out = live(op.out);
  clear_pixel_padding(out.data, tensor(op.out).shape, pixel_floats(out.count));
  int first = 0;
  for (int input : op.inputs) {
    const int count = live(input).count;
    PixelCombination copy{};
    copy.count = 1;
    copy.terms[0] = term_of(op, input, list + first, list + first, count, 0);
    combine_pixels(op, copy, first, count);
    first += count;
  }
}

// Of one map, or of several side by side: none of them is copied first.
void Runtime::Walk::affine_pixels(const Op& op) {
  const bool several = !op.inputs.empty(), passes = op.passes_channels() || tensor(op.in).filled;
  const std::int32_t* from = several ? join_lists(op) : live(op.in).list;
  if (!passes) {
    make_dense(op.out);
  } else if (!several) {
    keep_list(op);
    if (tensor(op.in).filled) fill_affine(op);
  }
  const Live& out = live(op.out);
  const PixelScratch lay = pixel_scratch(tensor(op.out));
  float *const factors = scratch(op) + lay.factors, *const shift = scratch(op) + lay.shift;
  clear_pixel_padding(out.data, tensor(op.out).shape, pixel_floats(out.count));
  for (int p = 0; p < out.count; ++p) {
    factors[p] = op.scale ? op.scale[out.list[p]] : 1.0f;
    shift[p] = op.shift ? op.shift[out.list[p]] : 0.0f;
  }
  int first = 0;
  for (int part = 0; part < (several ? static_cast<int>(op.inputs.size()) : 1); ++part) {
    const int input = several ? op.inputs[static_cast<std::size_t>(part)] : op.in;
    const int count = passes ? live(input).count : tensor(input).channels;
    PixelCombination affine{};
    affine.count = 1;
    affine.terms[0] = term_of(op, input, from, out.list + first, count, 0);
    if (op.scale) affine.factors = factors + first;
    if (op.shift) affine.shift = shift + first;
    combine_pixels(op, affine, first, count);
    first += count;
    from += live(input).count;
  }
}

bool Runtime::Walk::scale_pixels(const Op& op) {
  float* const factors = scratch(op) + pixel_scratch(tensor(op.out)).factors;
  if (!take_factors(op, factors)) return false;
  const Live &in = live(op.in), &out = live(op.out);
  // The mean of magnitudes grows with the factor.
  constexpr int kMean = static_cast<int>(Summary::l1);
  const bool known = runtime_.wanted_summaries_[static_cast<std::size_t>(op.out)] == kMean &&
                     context_.summary_kind[static_cast<std::size_t>(op.in)] == kMean;
  const std::int32_t* const places = context_.positions.data();
  for (int p = 0; known && p < out.count; ++p) summary(op.out, p) = std::fabs(factors[p]) * summary(op.in, places[p]);
  if (known) note_summaries(op.out);
  clear_pixel_padding(out.data, tensor(op.out).shape, pixel_floats(out.count));
  PixelCombination product{};
  product.count = 1;
  product.terms[0] = term_of(op, op.in, in.list, out.list, out.count, 0);
  product.factors = factors;
  combine_pixels(op, product, 0, out.count);
  return true;
}

// Between planes and pixels.
void Runtime::Walk::exchange_pixels(const Op& op) {
  const Tensor &from = tensor(op.in), &to = tensor(op.out);
  const Live& in = live(op.in);
  Live& out = live(op.out);
  keep_list(op);
  const bool makes_pixels = to.is_pixels();
  const int pixels = makes_pixels ? op.out : op.in, planes = makes_pixels ? op.in : op.out;
  const Tensor& t = tensor(planes);
  PixelExchange all = {live(planes).data + t.shape.origin(),
                       t.step(),
                       t.shape.pitch(),
                       pixel_at(pixels, 0, 0),
                       pixel_floats(in.count),
                       pixel_row(pixels),
                       t.shape.width,
                       in.count};
  int rows = t.shape.height;
  // Without padding, all rows are one long row.
  if (from.shape.halo == 0 && to.shape.halo == 0) {
    all.width *= rows;
    rows = 1;
  }
  if (makes_pixels) {
    clear_pixel_padding(out.data, to.shape, pixel_floats(out.count));
  } else {
    for (int p = 0; p < out.count; ++p) zero_padding(out.data + p * to.step(), to.shape);
  }
  each(rows, to.floats_for(out.count), [&](int y, int) {
    if (makes_pixels) lanes_.to_pixels(all, y, y + 1);
    else lanes_.to_planes(all, y, y + 1);
  });
  const int kind = context_.summary_kind[static_cast<std::size_t>(op.in)];
  if (kind < 0) return;
  for (int p = 0; p < out.count; ++p) summary(op.out, p) = summary(op.in, p);
  context_.summary_kind[static_cast<std::size_t>(op.out)] = kind;
}

}  // namespace penstock
