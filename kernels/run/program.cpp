#include "run/program.h"

#include "run/format3.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstring>

#include "run/loader.h"

namespace penstock {
namespace {

constexpr float kLeastScale = 1e-15f, kMostScale = 1e15f;

}  // namespace

std::unique_ptr<Program> Loader::load() {
  check(raw_.format == kFormat, "format " + std::to_string(raw_.format) + ", this engine reads " + std::to_string(kFormat));
  check(raw_.tensor_count >= 1 && raw_.tensor_count <= kMaxTensors, "number of tensors");
  check(raw_.op_count >= 2 && raw_.op_count <= kMaxTensors, "number of operations");
  check(raw_.layers >= 0 && raw_.layers <= raw_.op_count, "number of layers");
  check(raw_.knobs >= 0 && raw_.knobs <= raw_.op_count, "number of gated layers");
  check(raw_.weight_count >= 0 && raw_.arg_count >= 0, "buffer sizes");
  take_weights();
  program_->layers = static_cast<int>(raw_.layers);
  program_->knob_channels.assign(static_cast<std::size_t>(raw_.knobs), 0);
  load_tensors();
  layer_seen_.assign(static_cast<std::size_t>(raw_.layers), false);
  for (std::int64_t i = 0; i < raw_.op_count; ++i) load_op(static_cast<int>(i));
  plan_convolutions();
  where_ = "the whole program";
  check(program_->output >= 0, "no result is exported");
  for (int channels : program_->knob_channels) check(channels > 0, "a gated layer has no convolution");
  find_image_reader();
  return std::move(program_);
}

void Loader::take_weights() {
  program_->weights = raw_.weights;
  program_->weights_owner = raw_.weights_owner;
  if (program_->weights_owner != nullptr) return;
  auto copy = std::make_shared<ConvBuffer>();
  copy->assign(raw_.weights, static_cast<std::size_t>(raw_.weight_count), 0);
  program_->weights = copy->data();
  program_->weights_owner = std::move(copy);
}

void Loader::load_tensors() {
  for (std::int64_t i = 0; i < raw_.tensor_count; ++i) {
    const Row row{raw_.tensors + i * kTensorFields};
    where_ = "tensor " + std::to_string(i);
    Tensor t;
    t.element = static_cast<Element>(number(row[TensorField::element], 0, kElementCount - 1, "element"));
    t.layout = static_cast<Layout>(number(row[TensorField::layout], 0, static_cast<int>(Layout::pixels), "layout"));
    check(t.element == Element::float32 || t.layout == Layout::pixels, "codes lie in pixels");
    t.channels = number(row[TensorField::channels], 1, kMaxChannels, "channels");
    const std::int64_t halo = number(row[TensorField::halo], 0, kMaxHalo, "halo");
    const std::int64_t height = number(row[TensorField::height], 1, kMaxSide, "height");
    const std::int64_t width = number(row[TensorField::width], 1, kMaxSide, "width");
    t.offset = row[TensorField::offset];
    check(t.offset >= 0 && t.offset <= kMaxArenaFloats && t.offset % 16 == 0, "offset " + std::to_string(t.offset));
    const std::int64_t plane = (height + 2 * halo) * (width + halo);
    check(plane < kMaxTensorFloats, "plane too large");
    t.shape = Planes{static_cast<int>(height), static_cast<int>(width), static_cast<int>(halo)};
    const bool vector = t.layout == Layout::vector;
    check(vector || plane * t.channels < kMaxTensorFloats * 4, "tensor too large");
    check(!vector || (height == 1 && width == 1 && halo == 0), "a vector has one value a channel");
    if (t.element == Element::code8) t.quantised = quantised(row[TensorField::zero], row[TensorField::scale_bits]);
    check(t.floats() <= kMaxTensorFloats, "tensor too large");
    program_->arena_floats = std::max(program_->arena_floats, t.offset + round_to_line(t.floats()));
    program_->max_channels = std::max(program_->max_channels, t.channels);
    program_->tensors.push_back(t);
  }
  check(program_->arena_floats <= kMaxArenaFloats, "arena too large");
  written_.assign(program_->tensors.size(), false);
}

Quantised Loader::quantised(std::int64_t zero, std::int64_t bits) const {
  check(zero == 0 || zero == 128, "zero point " + std::to_string(zero));
  check(bits >= 0 && bits <= UINT32_MAX, "scale");
  const std::uint32_t word = static_cast<std::uint32_t>(bits);
  Quantised q;
  q.zero = static_cast<int>(zero);
  std::memcpy(&q.scale, &word, sizeof word);
  check(q.scale >= kLeastScale && q.scale <= kMostScale, "scale " + std::to_string(q.scale));
  return q;
}

int Loader::index(std::int64_t value, const char* what, bool must_be_written) const {
  check(value >= 0 && value < raw_.tensor_count, std::string(what) + ": tensor " + std::to_string(value));
  if (must_be_written) check(written_[static_cast<std::size_t>(value)], std::string(what) + " is read before it is written");
  return static_cast<int>(value);
}

const float* Loader::weights(std::int64_t offset, std::int64_t count, const char* what) const {
  check(count >= 0 && offset >= 0 && count <= raw_.weight_count && offset <= raw_.weight_count - count,
        std::string(what) + ": offset " + std::to_string(offset));
  return program_->weights + offset;
}

const float* Loader::rows(std::int64_t offset, std::int64_t count, const char* what) {
  constexpr std::int64_t kFewest = 1 << 14;  // fewer stay in the caches
  const float* const given = weights(offset, count, what);
  if (raw_.weights_owner == nullptr || count < kFewest) return given;
  program_->rows.emplace_back();
  program_->rows.back().assign(given, static_cast<std::size_t>(count), 0);
  return program_->rows.back().data();
}

int Loader::number(std::int64_t value, std::int64_t low, std::int64_t high, const char* what) const {
  check(value >= low && value <= high, std::string(what) + " " + std::to_string(value));
  return static_cast<int>(value);
}

bool Loader::same_size(const Tensor& a, const Tensor& b) const {
  return a.layout == b.layout && a.element == b.element && a.shape.height == b.shape.height && a.shape.width == b.shape.width;
}

// An operand may share memory with the result only where every value has the same address in both.
void Loader::check_apart(int a, int b, bool may_coincide) const {
  const Tensor &s = at(a), &t = at(b);
  const bool apart = s.offset + s.floats() <= t.offset || t.offset + t.floats() <= s.offset;
  const bool alike = s.offset == t.offset && s.layout == t.layout && s.shape.height == t.shape.height &&
                     s.shape.width == t.shape.width && s.shape.halo == t.shape.halo;
  check(a != b && (apart || (may_coincide && alike)), "the result overlaps an input");
}

void Loader::load_op(int i) {
  const Row f{raw_.ops + static_cast<std::int64_t>(i) * kOpFields};
  where_ = "operation " + std::to_string(i);
  Op op;
  op.kind = static_cast<OpKind>(number(f[OpField::kind], 0, kOpKindCount - 1, "kind"));
  op.keeps_list = op.kind == OpKind::depthwise;
  const bool above = op.kind == OpKind::threshold_conv;
  if (op.keeps_list || above) op.kind = OpKind::conv;
  check((i == 0) == (op.kind == OpKind::import_image), "the image is imported first and once");
  check((i == raw_.op_count - 1) == (op.kind == OpKind::export_result), "the result is exported last and once");
  if (op.kind != OpKind::import_image) op.in = index(f[OpField::in], "input", true);
  if (op.kind != OpKind::export_result) {
    op.out = index(f[OpField::out], "output", false);
    check(!written_[static_cast<std::size_t>(op.out)], "tensor " + std::to_string(op.out) + " is written twice");
  }
  op.function = static_cast<Function>(number(f[OpField::function], 0, kFunctionCount - 1, "function"));
  const bool counted = op.kind == OpKind::conv || op.kind == OpKind::linear || op.kind == OpKind::listed;
  const bool elementwise = counted || op.kind == OpKind::add || op.kind == OpKind::affine;
  check(elementwise || op.function == Function::none, "this kind of operation has no function");
  op.layer = number(f[OpField::layer], -1, raw_.layers - 1, "layer");
  if (op.layer >= 0) {
    check(counted, "this kind of operation is not counted");
    check(!layer_seen_[static_cast<std::size_t>(op.layer)], "layer is counted twice");
    layer_seen_[static_cast<std::size_t>(op.layer)] = true;
  }
  op.knob = number(f[OpField::knob], -1, raw_.knobs - 1, "knob");
  check(op.knob < 0 || op.kind == OpKind::conv, "only a convolution is gated");
  check(op.knob >= 0 || !above, "a threshold without a gate");
  const float* const scalars = raw_.scalars + static_cast<std::int64_t>(i) * kOpScalars;
  op.slope = scalars[static_cast<int>(Scalar::slope)];
  op.eps = scalars[static_cast<int>(Scalar::second)];
  check(std::isfinite(op.slope) && std::isfinite(op.eps), "parameter is not finite");
  load_kind(op, f, Row{f.at + kOpFieldCount});
  check_codes(op);
  check_constants(op);
  check_pixels(op);
  if (op.out >= 0) written_[static_cast<std::size_t>(op.out)] = true;
  program_->ops.push_back(std::move(op));
}

void Loader::load_kind(Op& op, Row f, Row p) {
  switch (op.kind) {
    case OpKind::import_image:
      check(at(op.out).layout == Layout::planes || at(op.out).is_codes(), "an image is planes or codes");
      program_->input = op.out;
      return;
    case OpKind::export_result:
      check(!at(op.in).is_pixels(), "a result is planes, a vector or codes");
      program_->output = op.in;
      return;
    case OpKind::depthwise:
    case OpKind::threshold_conv:
    case OpKind::conv: return load_conv(op, f, p);
    case OpKind::listed: return load_listed(op, f, p);
    case OpKind::pool: return load_pool(op, p);
    case OpKind::adaptive_pool:
      op.pool = static_cast<Pool>(number(p[AdaptivePoolField::pool], 0, kPoolCount - 1, "pool"));
      check(at(op.in).layout != Layout::vector, "a map is pooled");
      check(at(op.in).channels == at(op.out).channels, "channels differ");
      check_apart(op.in, op.out, false);
      return;
    case OpKind::add:
      op.in2 = index(f[OpField::in2], "second input", true);
      check(same_size(at(op.in), at(op.out)) && same_size(at(op.in2), at(op.out)), "sizes differ");
      check(at(op.in).channels == at(op.out).channels && at(op.in2).channels == at(op.out).channels, "channels differ");
      check(keeps_zero(op.function), "function must keep zero");
      check_apart(op.in, op.out, false);
      check_apart(op.in2, op.out, false);
      return;
    case OpKind::concat: return load_arguments(op, p[ConcatField::first_argument], p[ConcatField::arguments]);
    case OpKind::affine: {
      if (p[AffineField::scale] != -1) op.scale = weights(p[AffineField::scale], at(op.out).channels, "scale");
      if (p[AffineField::shift] != -1) op.shift = weights(p[AffineField::shift], at(op.out).channels, "shift");
      if (p[AffineField::arguments] != 0) {
        check(at(op.out).is_pixels(), "several maps lie in pixels");
        return load_arguments(op, p[AffineField::first_argument], p[AffineField::arguments]);
      }
      check(same_size(at(op.in), at(op.out)) && at(op.in).channels == at(op.out).channels, "sizes differ");
      // A list that grows moves planes; then the result must lie elsewhere.
      check_apart(op.in, op.out, op.passes_channels() && at(op.in).layout != Layout::pixels);
      return;
    }
    case OpKind::spread:
      check(same_size(at(op.in), at(op.out)) && at(op.in).channels == at(op.out).channels, "sizes differ");
      check_apart(op.in, op.out, false);
      return;
    case OpKind::scale:
      op.in2 = index(f[OpField::in2], "second input", true);
      check(same_size(at(op.in), at(op.out)), "sizes differ");
      check(at(op.in2).layout == Layout::vector, "factors are a vector");
      check(at(op.in).channels == at(op.out).channels && at(op.in2).channels == at(op.out).channels, "channels differ");
      check_apart(op.in, op.out, at(op.in).layout != Layout::pixels);
      check_apart(op.in2, op.out, false);
      return;
    case OpKind::linear: {
      check(at(op.out).layout == Layout::vector, "the result is a vector");
      const Tensor& in = at(op.in);
      const std::int64_t area = static_cast<std::int64_t>(in.shape.height) * in.shape.width;
      const std::int64_t features = area * in.channels;
      check(features <= INT_MAX, "too many features");
      op.weights = rows(p[LinearField::weights], features * at(op.out).channels, "weights");
      op.bias = weights(p[LinearField::bias], at(op.out).channels, "bias");
      // Planes are packed before they are multiplied.
      if (in.layout == Layout::planes) op.scratch.shared = round_to_line(features);
      check_apart(op.in, op.out, false);
      return;
    }
    case OpKind::pack: {
      const Tensor &in = at(op.in), &out = at(op.out);
      check(in.channels == out.channels && in.shape.height == out.shape.height && in.shape.width == out.shape.width,
            "sizes differ");
      check(in.layout != Layout::pixels || out.layout != Layout::pixels, "pixels become planes, or planes pixels");
      check(!in.is_pixels() || out.layout == Layout::planes, "pixels become planes");
      check(!out.is_pixels() || in.layout == Layout::planes, "planes become pixels");
      check_apart(op.in, op.out, false);
      return;
    }
    case OpKind::channel_norm:
      check(at(op.in).layout == Layout::planes && same_size(at(op.in), at(op.out)), "sizes differ");
      check(at(op.in).channels == at(op.out).channels, "channels differ");
      op.scale = weights(p[ChannelNormField::scale], at(op.in).channels, "scale");
      op.shift = weights(p[ChannelNormField::shift], at(op.in).channels, "shift");
      check(op.eps >= 0.0f, "eps");
      check_apart(op.in, op.out, false);
      return;
  }
}

void Loader::load_pool(Op& op, Row p) {
  const Tensor &in = at(op.in), &out = at(op.out);
  check(in.layout == out.layout && in.element == out.element && in.layout != Layout::vector && in.channels == out.channels,
        "a map is pooled");
  op.pool = static_cast<Pool>(number(p[PoolField::pool], 0, 1, "pool"));
  PoolShape& w = op.window;
  w = {read_window<PoolField>(p)};
  check(w.pad_h <= w.kernel_h / 2 && w.pad_w <= w.kernel_w / 2, "padding");
  check(op.pool == Pool::max || (w.dilation_h == 1 && w.dilation_w == 1), "dilation");
  w.divisor = number(p[PoolField::divisor], 0, INT_MAX, "divisor");
  w.count_padding = number(p[PoolField::count_padding], 0, 1, "count padding") == 1;
  check(p[PoolField::dilation_h] * (p[PoolField::kernel_h] - 1) <= kMaxSide &&
            p[PoolField::dilation_w] * (p[PoolField::kernel_w] - 1) <= kMaxSide,
        "window too wide");
  // The last window starts inside the image or its left padding; it may end beyond (ceil mode).
  check((out.shape.height - 1) * p[PoolField::stride_h] < in.shape.height + p[PoolField::pad_h] &&
            (out.shape.width - 1) * p[PoolField::stride_w] < in.shape.width + p[PoolField::pad_w],
        "the result has another size");
  check_apart(op.in, op.out, false);
}

// Inputs that lie side by side in the result.
void Loader::load_arguments(Op& op, std::int64_t first, std::int64_t count) {
  check(count >= 1 && count <= kMaxTensors && first >= 0 && first <= raw_.arg_count - count, "arguments");
  std::int64_t channels = 0;
  for (std::int64_t a = first; a < first + count; ++a) {
    const int input = index(raw_.args[a], "argument", true);
    check(same_size(at(input), at(op.out)), "sizes differ");
    check_apart(input, op.out, false);
    op.inputs.push_back(input);
    channels += at(input).channels;
  }
  check(op.in == op.inputs[0], "the first argument is the input");
  check(channels == at(op.out).channels, "channels do not add up");
}

// An image that only one convolution reads need not be copied, if that convolution takes it without margins. Summaries
// take whole vectors.
void Loader::find_image_reader() {
  constexpr std::int64_t kVector = 16;
  const Tensor& image = at(program_->input);
  const int tensor = program_->input;
  int reader = -1, readers = 0;
  for (int i = 1; i < static_cast<int>(program_->ops.size()); ++i) {
    const Op& op = program_->ops[static_cast<std::size_t>(i)];
    const bool reads =
        op.in == tensor || op.in2 == tensor || std::find(op.inputs.begin(), op.inputs.end(), tensor) != op.inputs.end();
    if (!reads) continue;
    ++readers;
    if (op.kind == OpKind::conv && op.in == tensor && op.in2 != tensor && op.plan && conv_takes_bare(*op.plan)) reader = i;
  }
  const bool vectors = static_cast<std::int64_t>(image.shape.height) * image.shape.width % kVector == 0;
  if (readers == 1 && vectors) program_->image_reader = reader;
}

std::unique_ptr<Program> load_program(const RawProgram& raw, const Machine& machine) {
  const bool sized = raw.tensor_count >= 0 && raw.tensor_count <= kMaxTensors && raw.op_count >= 0 && raw.op_count <= kMaxTensors;
  if (raw.format == kFormat3 && sized) return Loader(Upgraded(raw).raw, machine).load();
  return Loader(raw, machine).load();
}

}  // namespace penstock
