// Operations on quantised maps, over the channels that are stored. docs/int8.md has the arithmetic.
#include <cmath>

#include "run/walk.h"

namespace penstock {
namespace {

bool is_curve(Function f) { return f == Function::silu || f == Function::gelu || f == Function::hardswish; }

}  // namespace

// Values of which some are beyond far_limit(): how many, and whether all are finite.
struct Runtime::Walk::Clipping {
  std::int64_t count = 0, far = 0;
  bool finite = true;

  void look(const float* values, std::int64_t n, float limit) {
    count += n;
    for (std::int64_t i = 0; i < n; ++i) {
      finite &= std::isfinite(values[i]);
      far += std::fabs(values[i]) > limit;
    }
  }
};

// Whether these values may be clipped: a few may, many mean that the input was not preprocessed.
bool Runtime::Walk::may_clip(const Clipping& clipped) {
  far_ = clipped.finite && clipped.far > clipped.count / kFarShare;
  return clipped.finite && !far_;
}

// One input of a combination: a tensor and a factor for each of its result's channels, or one for all.
struct Runtime::Walk::Term {
  int tensor;
  const std::int32_t* list;  // of its channels as the result counts them
  const float* factors;      // by channel of the result's list; null: all 1
};

bool Runtime::Walk::takes_codes(const Op& op) const {
  return (op.in >= 0 && tensor(op.in).is_codes()) || (op.out >= 0 && tensor(op.out).is_codes());
}

bool Runtime::Walk::run_codes(const Op& op) {
  switch (op.kind) {
    case OpKind::import_image: return import_codes(op);
    case OpKind::export_result: return export_codes(op);
    case OpKind::conv: return conv_codes(op);
    case OpKind::pool: pool_codes(op); break;
    case OpKind::adaptive_pool: average_codes(op); break;
    case OpKind::add: add_codes(op); break;
    case OpKind::concat: concat_codes(op); break;
    case OpKind::affine: affine_codes(op); break;
    case OpKind::scale: return scale_codes(op);
    default: return pack_codes(op);
  }
  return true;
}

// The padding of a map whose list is known.
void Runtime::Walk::start_codes(int t) { fill_padding(bytes_of(t), tensor(t).shape, codes_of(t).bytes, tensor(t).quantised.zero); }

bool Runtime::Walk::import_codes(const Op& op) {
  const Tensor& t = tensor(op.out);
  make_dense(op.out);
  start_codes(op.out);
  if (maps_.import_image(image_, t.channels, t.quantised, bytes_of(op.out), codes_of(op.out).bytes, t.shape)) return true;
  Clipping clipped;
  clipped.look(image_, runtime_.image_floats(), far_limit(t.quantised));
  return may_clip(clipped);
}

bool Runtime::Walk::export_codes(const Op& op) {
  const Tensor& t = tensor(op.in);
  const Live& in = live(op.in);
  const CodeMap map = codes_of(op.in);
  const std::int64_t area = static_cast<std::int64_t>(t.shape.height) * t.shape.width;
  std::memset(result_, 0, sizeof(float) * static_cast<std::size_t>(t.channels * area));
  for (int y = 0; y < t.shape.height; ++y) {
    const std::uint8_t* const row = map.data + (t.shape.origin() + std::int64_t{y} * t.shape.pitch()) * map.bytes;
    for (int p = 0; p < in.count; ++p)
      maps_.to_floats(row + p, map.bytes, t.shape.width, 1, t.quantised,
                      result_ + in.list[p] * area + std::int64_t{y} * t.shape.width, 0);
  }
  return true;
}

bool Runtime::Walk::conv_codes(const Op& op) {
  const Live& in = live(op.in);
  Live& out = live(op.out);
  Outputs outputs;
  if (!choose_outputs(op, own_list(op.out), outputs)) return false;
  out.list = outputs.list;
  out.count = outputs.count;
  if (op.keeps_list) out.fill = op.fill.data();
  const int wanted = runtime_.wanted_summaries_[static_cast<std::size_t>(op.out)];
  const bool sums = wanted == static_cast<int>(Summary::l1);
  Int8Task task{bytes_of(op.in),
                in.list,
                in.count,
                bytes_of(op.out),
                outputs.list,
                outputs.count,
                outputs.gains,
                outputs.bias,
                team_ == nullptr ? 1 : team_->threads(),
                sums ? context_.merged.data() : nullptr,
                nullptr,
                0,
                in.fill};
  if (op.layer >= 0 && (macs_ || active_)) note_conv(op, int8_macs(*op.int8, task), outputs.count);
  decide_int8(*op.int8, task);
  if (algorithms_ && op.layer >= 0) algorithms_[op.layer] = algorithm_number(*task.algorithm);
  if (outputs.count == 0) return true;
  add_upcoming_codes(op, task);
  std::uint8_t* const room = reinterpret_cast<std::uint8_t*>(scratch(op));
  begin_int8(*op.int8, task, room);
  for (int stage = 0; stage < int8_stages(*op.int8, task); ++stage) {
    const int units = int8_units(*op.int8, task, stage);
    if (team_ == nullptr || units < 2) {
      run_int8(*op.int8, task, stage, 0, units, 0, room);
      continue;
    }
    const int parts = std::min(units, 8 * team_->threads());
    team_->run(parts, [&](int part, int member) {
      run_int8(*op.int8, task, stage, static_cast<int>(std::int64_t{units} * part / parts),
               static_cast<int>(std::int64_t{units} * (part + 1) / parts), member, room);
    });
  }
  end_int8(*op.int8, task, room);
  if (sums) take_sums(op.out);
  return true;
}

// The summaries of a map whose sums of magnitudes have been left in `merged`.
void Runtime::Walk::take_sums(int t) {
  const Tensor& to = tensor(t);
  const std::int64_t area = static_cast<std::int64_t>(to.shape.height) * to.shape.width;
  for (int p = 0; p < live(t).count; ++p) {
    CodeSums one;
    one.magnitude = context_.merged[static_cast<std::size_t>(p)];
    summary(t, p) = summary_of(one, Summary::l1, area, to.quantised.scale);
  }
  note_summaries(t);
}

void Runtime::Walk::pool_codes(const Op& op) {
  const Tensor& to = tensor(op.out);
  const Live& in = live(op.in);
  keep_list(op);
  start_codes(op.out);
  const CodeMap from = codes_of(op.in);
  each(to.shape.height, to.floats(), [&](int y, int) {
    maps_.pool(from, in.count, op.window, op.pool, bytes_of(op.out), codes_of(op.out).bytes, to.shape, y, y + 1);
  });
}

// To a vector of float32: the mean of every channel.
void Runtime::Walk::average_codes(const Op& op) {
  const Tensor& from = tensor(op.in);
  const Live& in = live(op.in);
  Live& out = live(op.out);
  out.list = in.list;
  out.count = in.count;
  const std::int64_t pixels = static_cast<std::int64_t>(from.shape.height) * from.shape.width;
  const auto mean = [&](std::int64_t sum) { return static_cast<float>(sum) * from.quantised.scale / static_cast<float>(pixels); };
  const CodeSums* const sums = context_.code_sums.data();
  maps_.sum(codes_of(op.in), 0, in.count, true, context_.code_sums.data());
  if (in.fill == nullptr) {
    for (int p = 0; p < in.count; ++p) out.data[p] = mean(sums[p].sum);
    return;
  }
  make_dense(op.out);
  for (int c = 0, p = 0; c < from.channels; ++c) {
    const bool stored = p < in.count && in.list[p] == c;
    out.data[c] = mean(stored ? sums[p++].sum : pixels * static_cast<std::int64_t>(in.fill[c]));
  }
}

// `count` terms (one or two) to `channels` channels of the result, the first of which is its list's number `first`.
void Runtime::Walk::combine(const Op& op, const Term* terms, int count, const float* shift, int first, int channels) {
  if (channels == 0) return;
  const Tensor& to = tensor(op.out);
  const Live& out = live(op.out);
  const std::int64_t line = round_to_line(to.channels);
  float* const factors = scratch(op);
  std::uint8_t* memory = reinterpret_cast<std::uint8_t*>(factors + 3 * line);
  const float inverse = is_curve(op.function) ? 1.0f : 1.0f / to.quantised.scale;
  Combination c;
  const auto spread = [&](const Term& term) {
    const Spread made(out.list + first, channels, term.list, live(term.tensor).count, tensor(term.tensor).quantised.zero, memory);
    memory += Spread::size(to.channels);
    return made;
  };
  const Spread a = spread(terms[0]), b = spread(terms[count - 1]);
  for (int t = 0; t < count; ++t) {
    const float scale = tensor(terms[t].tensor).quantised.scale;
    for (int p = 0; p < channels; ++p)
      factors[t * line + p] = terms[t].factors ? scale * terms[t].factors[p] * inverse : scale * inverse;
    std::fill(factors + t * line + channels, factors + t * line + round_to_line(channels), 0.0f);
  }
  for (int p = 0; shift && p < channels; ++p) factors[2 * line + p] = shift[p] * inverse;
  c.a = codes_of(terms[0].tensor);
  c.spread_a = &a;
  if (count == 2) {
    c.b = codes_of(terms[1].tensor);
    c.spread_b = &b;
  }
  c.first = factors;
  c.second = factors + line;
  if (shift) c.shift = factors + 2 * line;
  c.function = op.function;
  c.slope = op.slope;
  c.out = to.quantised;
  c.bytes = codes_of(op.out).bytes;
  c.to = bytes_of(op.out) + first;
  c.count = channels;
  c.shape = to.shape;
  if (team_ != nullptr) return each(to.shape.height, to.floats(), [&](int y, int) { maps_.combine(c, y, y + 1); });
  // On one thread the sums that the next gate asks for come with it.
  constexpr std::int64_t kMostPixels = 1 << 22;  // sums stay within int32
  const bool sums = channels == out.count && std::int64_t{to.shape.height} * to.shape.width <= kMostPixels &&
                    runtime_.wanted_summaries_[static_cast<std::size_t>(op.out)] == static_cast<int>(Summary::l1);
  if (sums) {
    c.sums = context_.merged.data();
    std::fill(context_.merged.begin(), context_.merged.end(), 0);
  }
  maps_.combine(c, 0, to.shape.height);
  if (sums) take_sums(op.out);
}

void Runtime::Walk::unite_lists(int a, int b, int out) {
  const Live &x = live(a), &y = live(b);
  std::int32_t* const list = own_list(out);
  live(out).list = list;
  live(out).count = static_cast<int>(std::set_union(x.list, x.list + x.count, y.list, y.list + y.count, list) - list);
}

const std::int32_t* Runtime::Walk::join_lists(const Op& op) {
  Live& out = live(op.out);
  std::int32_t* const list = own_list(op.out);
  out.list = list;
  out.count = 0;
  int shift = 0;
  for (int input : op.inputs) {
    for (int p = 0; p < live(input).count; ++p) list[out.count++] = live(input).list[p] + shift;
    shift += tensor(input).channels;
  }
  return list;
}

void Runtime::Walk::add_codes(const Op& op) {
  unite_lists(op.in, op.in2, op.out);
  start_codes(op.out);
  const Term terms[] = {{op.in, live(op.in).list, nullptr}, {op.in2, live(op.in2).list, nullptr}};
  combine(op, terms, 2, nullptr, 0, live(op.out).count);
}

void Runtime::Walk::concat_codes(const Op& op) {
  const std::int32_t* const list = join_lists(op);
  start_codes(op.out);
  int first = 0;
  for (int input : op.inputs) {
    const int count = live(input).count;
    const Term term{input, list + first, nullptr};
    combine(op, &term, 1, nullptr, first, count);
    first += count;
  }
}

void Runtime::Walk::affine_codes(const Op& op) {
  const Live& in = live(op.in);
  Live& out = live(op.out);
  if (op.passes_channels()) {
    out.list = in.list;
    out.count = in.count;
  } else {
    make_dense(op.out);
  }
  start_codes(op.out);
  float* const scales = context_.gains.data();
  for (int p = 0; p < out.count; ++p) scales[p] = op.scale ? op.scale[out.list[p]] : 1.0f;
  // A shift makes every channel active, so its list is that of the shifts.
  const Term term{op.in, in.list, op.scale ? scales : nullptr};
  combine(op, &term, 1, op.shift, 0, out.count);
}

bool Runtime::Walk::scale_codes(const Op& op) {
  const Live &in = live(op.in), &by = live(op.in2);
  Live& out = live(op.out);
  std::int32_t* const list = own_list(op.out);
  float* const factors = context_.gains.data();
  out.list = list;
  out.count = 0;
  for (int p = 0, q = 0; p < in.count; ++p) {
    while (q < by.count && by.list[q] < in.list[p]) ++q;
    if (q == by.count || by.list[q] != in.list[p]) continue;
    list[out.count] = in.list[p];
    factors[out.count++] = by.data[q];
  }
  if (!kernels_.all_finite(factors, out.count)) return false;
  if (in.fill) scale_constants(op);
  start_codes(op.out);
  const Term term{op.in, in.list, factors};
  combine(op, &term, 1, nullptr, 0, out.count);
  return true;
}

// Between codes and float32.
bool Runtime::Walk::pack_codes(const Op& op) {
  const Tensor &from = tensor(op.in), &to = tensor(op.out);
  const Live& in = live(op.in);
  Live& out = live(op.out);
  out.list = in.list;
  out.count = in.count;
  if (to.layout == Layout::pixels) {
    start_codes(op.out);
    const CodeMap map = codes_of(op.out);
    const bool vector = from.layout == Layout::vector;
    const auto values_of = [&](int y) {
      return vector ? in.data : in.data + from.shape.origin() + std::int64_t{y} * from.shape.pitch();
    };
    std::atomic<bool> good{true};
    each(to.shape.height, to.floats(), [&](int y, int) {
      std::uint8_t* const row = bytes_of(op.out) + (to.shape.origin() + std::int64_t{y} * to.shape.pitch()) * map.bytes;
      if (!maps_.from_floats(values_of(y), from.step(), to.shape.width, in.count, to.quantised, row, map.bytes)) good.store(false);
    });
    if (good.load()) return true;
    Clipping clipped;
    for (int p = 0; p < in.count; ++p)
      for (int y = 0; y < to.shape.height; ++y)
        clipped.look(values_of(y) + p * from.step(), to.shape.width, far_limit(to.quantised));
    return may_clip(clipped);
  }
  const CodeMap map = codes_of(op.in);
  const bool planes = to.layout == Layout::planes;
  for (int p = 0; planes && p < in.count; ++p) zero_padding(out.data + p * to.step(), to.shape);
  each(from.shape.height, to.floats(), [&](int y, int) {
    const std::uint8_t* const row = map.data + (from.shape.origin() + std::int64_t{y} * from.shape.pitch()) * map.bytes;
    float* const values = planes ? out.data + to.shape.origin() + std::int64_t{y} * to.shape.pitch() : out.data;
    maps_.to_floats(row, map.bytes, from.shape.width, in.count, from.quantised, values, to.step());
  });
  return true;
}

}  // namespace penstock
