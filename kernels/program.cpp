#include "program.h"

#include <algorithm>
#include <climits>
#include <cmath>

namespace penstock {
namespace {

constexpr std::int64_t kMaxSide = 1 << 16;
constexpr std::int64_t kMaxHalo = 1 << 10;
constexpr std::int64_t kMaxChannels = 1 << 18;
constexpr std::int64_t kMaxTensorFloats = std::int64_t{1} << 30;
constexpr std::int64_t kMaxArenaFloats = std::int64_t{1} << 32;
constexpr std::int64_t kMaxTensors = 1 << 16;

// Fields of an operation after the seven common ones, by kind.
//   conv           kernel h, w; stride h, w; pad h, w; dilation h, w; groups; weights; bias; phi; rho; summary;
//                  function after the addition of `in2`; algorithm; first argument of its levels (-1: none):
//                  their number L, bias, gain, then L - 1 edges. Then rho has L rows, as bias and gain have
//   pool           kind; kernel h, w; stride h, w; pad h, w; dilation h, w; divisor; count padding
//   adaptive_pool  kind
//   concat         first argument; number of arguments
//   affine         scale; shift           (-1: none)
//   linear         weights; bias
//   channel_norm   scale; shift
constexpr int kCommon = 7;

class Loader {
 public:
  Loader(const RawProgram& raw, Isa isa) : raw_(raw), program_(new Program) { program_->isa = isa; }

  std::unique_ptr<Program> load() {
    check(raw_.format == kFormat, "format " + std::to_string(raw_.format) + ", this engine reads " + std::to_string(kFormat));
    check(raw_.tensor_count >= 1 && raw_.tensor_count <= kMaxTensors, "number of tensors");
    check(raw_.op_count >= 2 && raw_.op_count <= kMaxTensors, "number of operations");
    check(raw_.layers >= 0 && raw_.layers <= raw_.op_count, "number of layers");
    check(raw_.knobs >= 0 && raw_.knobs <= raw_.op_count, "number of gated layers");
    check(raw_.weight_count >= 0 && raw_.arg_count >= 0, "buffer sizes");
    program_->weights.assign(raw_.weights, static_cast<std::size_t>(raw_.weight_count), 0);
    program_->layers = static_cast<int>(raw_.layers);
    program_->knob_channels.assign(static_cast<std::size_t>(raw_.knobs), 0);
    load_tensors();
    layer_seen_.assign(static_cast<std::size_t>(raw_.layers), false);
    for (std::int64_t i = 0; i < raw_.op_count; ++i) load_op(static_cast<int>(i));
    where_ = "the whole program";
    check(program_->output >= 0, "no result is exported");
    for (int channels : program_->knob_channels) check(channels > 0, "a gated layer has no convolution");
    find_image_reader();
    return std::move(program_);
  }

 private:
  void check(bool good, const std::string& what) const {
    if (!good) throw ProgramError("program refused at " + where_ + ": " + what);
  }

  void load_tensors() {
    for (std::int64_t i = 0; i < raw_.tensor_count; ++i) {
      const std::int64_t* f = raw_.tensors + i * kTensorFields;
      where_ = "tensor " + std::to_string(i);
      check(f[0] == 0 || f[0] == 1, "kind " + std::to_string(f[0]));
      check(f[1] >= 1 && f[1] <= kMaxChannels, "channels " + std::to_string(f[1]));
      check(f[2] >= 1 && f[2] <= kMaxSide && f[3] >= 1 && f[3] <= kMaxSide,
            "size " + std::to_string(f[2]) + "x" + std::to_string(f[3]));
      check(f[4] >= 0 && f[4] <= kMaxHalo, "halo " + std::to_string(f[4]));
      check(f[5] >= 0 && f[5] <= kMaxArenaFloats && f[5] % 16 == 0, "offset " + std::to_string(f[5]));
      check((f[2] + 2 * f[4]) * (f[3] + f[4]) < kMaxTensorFloats, "plane too large");
      Tensor t;
      t.kind = static_cast<TensorKind>(f[0]);
      t.channels = static_cast<int>(f[1]);
      t.shape = Planes{static_cast<int>(f[2]), static_cast<int>(f[3]), static_cast<int>(f[4])};
      t.offset = f[5];
      check(t.kind == TensorKind::planes || (f[2] == 1 && f[3] == 1 && f[4] == 0), "a vector has one value a channel");
      check(t.floats() <= kMaxTensorFloats, "tensor too large");
      program_->arena_floats = std::max(program_->arena_floats, t.offset + round_to_line(t.floats()));
      program_->max_channels = std::max(program_->max_channels, t.channels);
      program_->tensors.push_back(t);
    }
    check(program_->arena_floats <= kMaxArenaFloats, "arena too large");
    written_.assign(program_->tensors.size(), false);
  }

  int index(std::int64_t value, const char* what, bool must_be_written) const {
    check(value >= 0 && value < raw_.tensor_count, std::string(what) + ": tensor " + std::to_string(value));
    if (must_be_written) check(written_[static_cast<std::size_t>(value)], std::string(what) + " is read before it is written");
    return static_cast<int>(value);
  }

  const Tensor& at(int tensor) const { return program_->tensors[static_cast<std::size_t>(tensor)]; }

  const float* weights(std::int64_t offset, std::int64_t count, const char* what) const {
    check(count >= 0 && offset >= 0 && count <= raw_.weight_count && offset <= raw_.weight_count - count,
          std::string(what) + ": offset " + std::to_string(offset));
    return program_->weights.data() + offset;
  }

  int number(std::int64_t value, std::int64_t low, std::int64_t high, const char* what) const {
    check(value >= low && value <= high, std::string(what) + " " + std::to_string(value));
    return static_cast<int>(value);
  }

  bool same_size(const Tensor& a, const Tensor& b) const {
    return a.kind == b.kind && a.shape.height == b.shape.height && a.shape.width == b.shape.width;
  }

  // Planes overlap an operation's result only when they lie exactly alike, value on value.
  void check_apart(int a, int b, bool may_coincide) const {
    const Tensor &s = at(a), &t = at(b);
    const bool apart = s.offset + s.floats() <= t.offset || t.offset + t.floats() <= s.offset;
    const bool alike = s.offset == t.offset && s.kind == t.kind && s.shape.height == t.shape.height &&
                       s.shape.width == t.shape.width && s.shape.halo == t.shape.halo;
    check(a != b && (apart || (may_coincide && alike)), "the result overlaps an input");
  }

  void load_op(int i) {
    const std::int64_t* f = raw_.ops + static_cast<std::int64_t>(i) * kOpFields;
    where_ = "operation " + std::to_string(i);
    Op op;
    op.kind = static_cast<OpKind>(number(f[0], 0, kOpKinds - 1, "kind"));
    check((i == 0) == (op.kind == OpKind::import_image), "the image is imported first and once");
    check((i == raw_.op_count - 1) == (op.kind == OpKind::export_result), "the result is exported last and once");
    if (op.kind != OpKind::import_image) op.in = index(f[1], "input", true);
    if (op.kind != OpKind::export_result) {
      op.out = index(f[3], "output", false);
      check(!written_[static_cast<std::size_t>(op.out)], "tensor " + std::to_string(op.out) + " is written twice");
    }
    op.function = static_cast<Function>(number(f[4], 0, kFunctionCount - 1, "function"));
    const bool elementwise = op.kind == OpKind::conv || op.kind == OpKind::add || op.kind == OpKind::affine || op.kind == OpKind::linear;
    check(elementwise || op.function == Function::none, "this kind of operation has no function");
    op.layer = number(f[5], -1, raw_.layers - 1, "layer");
    if (op.layer >= 0) {
      check(op.kind == OpKind::conv || op.kind == OpKind::linear, "this kind of operation is not counted");
      check(!layer_seen_[static_cast<std::size_t>(op.layer)], "layer is counted twice");
      layer_seen_[static_cast<std::size_t>(op.layer)] = true;
    }
    op.knob = number(f[6], -1, raw_.knobs - 1, "knob");
    check(op.knob < 0 || op.kind == OpKind::conv, "only a convolution is gated");
    op.slope = raw_.scalars[static_cast<std::int64_t>(i) * kOpScalars];
    op.eps = raw_.scalars[static_cast<std::int64_t>(i) * kOpScalars + 1];
    check(std::isfinite(op.slope) && std::isfinite(op.eps), "parameter is not finite");
    load_kind(op, f, f + kCommon);
    if (op.out >= 0) written_[static_cast<std::size_t>(op.out)] = true;
    program_->ops.push_back(std::move(op));
  }

  void load_kind(Op& op, const std::int64_t* f, const std::int64_t* p) {
    switch (op.kind) {
      case OpKind::import_image:
        check(at(op.out).kind == TensorKind::planes, "an image is planes");
        program_->input = op.out;
        return;
      case OpKind::export_result:
        program_->output = op.in;
        return;
      case OpKind::conv:
        return load_conv(op, f, p);
      case OpKind::pool:
        return load_pool(op, p);
      case OpKind::adaptive_pool:
        op.pool = static_cast<Pool>(number(p[0], 0, 1, "pool"));
        check(at(op.in).kind == TensorKind::planes, "planes are pooled");
        check(at(op.in).channels == at(op.out).channels, "channels differ");
        check_apart(op.in, op.out, false);
        return;
      case OpKind::add:
        op.in2 = index(f[2], "second input", true);
        check(same_size(at(op.in), at(op.out)) && same_size(at(op.in2), at(op.out)), "sizes differ");
        check(at(op.in).channels == at(op.out).channels && at(op.in2).channels == at(op.out).channels, "channels differ");
        check(keeps_zero(op.function), "function must keep zero");
        check_apart(op.in, op.out, false);
        check_apart(op.in2, op.out, false);
        return;
      case OpKind::concat:
        return load_concat(op, p);
      case OpKind::affine: {
        check(same_size(at(op.in), at(op.out)) && at(op.in).channels == at(op.out).channels, "sizes differ");
        if (p[0] != -1) op.scale = weights(p[0], at(op.in).channels, "scale");
        if (p[1] != -1) op.shift = weights(p[1], at(op.in).channels, "shift");
        // A list that grows moves planes; then the result must lie elsewhere.
        check_apart(op.in, op.out, op.passes_channels());
        return;
      }
      case OpKind::scale:
        op.in2 = index(f[2], "second input", true);
        check(same_size(at(op.in), at(op.out)), "sizes differ");
        check(at(op.in2).kind == TensorKind::vector, "factors are a vector");
        check(at(op.in).channels == at(op.out).channels && at(op.in2).channels == at(op.out).channels, "channels differ");
        check_apart(op.in, op.out, true);
        check_apart(op.in2, op.out, false);
        return;
      case OpKind::linear: {
        check(at(op.out).kind == TensorKind::vector, "the result is a vector");
        const Tensor& in = at(op.in);
        const std::int64_t area = static_cast<std::int64_t>(in.shape.height) * in.shape.width;
        const std::int64_t features = area * in.channels;
        check(features <= INT_MAX, "too many features");
        op.weights = weights(p[0], features * at(op.out).channels, "weights");
        op.bias = weights(p[1], at(op.out).channels, "bias");
        // Planes are packed before they are multiplied.
        if (in.kind == TensorKind::planes) op.scratch.shared = round_to_line(features);
        check_apart(op.in, op.out, false);
        return;
      }
      case OpKind::pack: {
        const Tensor &in = at(op.in), &out = at(op.out);
        check(in.channels == out.channels && in.shape.height == out.shape.height && in.shape.width == out.shape.width,
              "sizes differ");
        check_apart(op.in, op.out, false);
        return;
      }
      case OpKind::channel_norm:
        check(at(op.in).kind == TensorKind::planes && same_size(at(op.in), at(op.out)), "sizes differ");
        check(at(op.in).channels == at(op.out).channels, "channels differ");
        op.scale = weights(p[0], at(op.in).channels, "scale");
        op.shift = weights(p[1], at(op.in).channels, "shift");
        check(op.eps >= 0.0f, "eps");
        check_apart(op.in, op.out, false);
        return;
    }
  }

  void load_conv(Op& op, const std::int64_t* f, const std::int64_t* p) {
    const Tensor &in = at(op.in), &out = at(op.out);
    check(in.kind == TensorKind::planes && out.kind == TensorKind::planes, "a convolution works on planes");
    ConvShape s;
    s.in_channels = in.channels;
    s.out_channels = out.channels;
    s.kernel_h = number(p[0], 1, kMaxSide, "kernel");
    s.kernel_w = number(p[1], 1, kMaxSide, "kernel");
    s.stride_h = number(p[2], 1, kMaxSide, "stride");
    s.stride_w = number(p[3], 1, kMaxSide, "stride");
    s.pad_h = number(p[4], 0, in.shape.halo, "padding");
    s.pad_w = number(p[5], 0, in.shape.halo, "padding");
    s.dilation_h = number(p[6], 1, kMaxSide, "dilation");
    s.dilation_w = number(p[7], 1, kMaxSide, "dilation");
    s.groups = number(p[8], 1, in.channels, "groups");
    check(in.channels % s.groups == 0 && out.channels % s.groups == 0, "groups do not divide the channels");
    check(p[6] * (p[0] - 1) <= kMaxSide * 2 && p[7] * (p[1] - 1) <= kMaxSide * 2, "kernel too wide");
    s.input = in.shape;
    s.output = out.shape;
    check(conv_output_size(in.shape.height, s.kernel_h, s.stride_h, s.pad_h, s.dilation_h) == out.shape.height &&
              conv_output_size(in.shape.width, s.kernel_w, s.stride_w, s.pad_w, s.dilation_w) == out.shape.width,
          "the result has another size");
    check(static_cast<int>(op.function) < kActivationCount, "function");
    s.activation = static_cast<Activation>(op.function);
    s.leaky_slope = op.slope;
    check(p[0] * p[1] <= INT_MAX, "kernel");
    op.kernel_area = s.kernel_h * s.kernel_w;
    const std::int64_t row = p[0] * p[1] * (in.channels / s.groups);
    check(row <= INT_MAX, "kernel");
    const float* kernel = weights(p[9], row * out.channels, "weights");
    const float* bias = p[10] == -1 ? nullptr : weights(p[10], out.channels, "bias");
    if (op.knob >= 0) {
      int& channels = program_->knob_channels[static_cast<std::size_t>(op.knob)];
      check(channels == 0, "two convolutions share one gate");
      channels = out.channels;
      op.phi = weights(p[11], static_cast<std::int64_t>(in.channels) * out.channels, "phi");
      load_levels(op, p[16], p[12]);
      op.summary = static_cast<Summary>(number(p[13], 0, kSummaryCount - 1, "summary"));
      // With one gate per channel a suppressed channel stays zero only under f(0) = 0, which all of conv.h's have.
    }
    check_apart(op.in, op.out, false);
    op.in2 = f[2] == -1 ? -1 : index(f[2], "second input", true);
    op.after = static_cast<Function>(number(p[14], 0, kFunctionCount - 1, "function after the addition"));
    if (op.in2 >= 0) {
      const Tensor& skip = at(op.in2);
      check(same_size(skip, out) && skip.channels == out.channels && skip.shape.halo == out.shape.halo, "the addend has another size");
      check(keeps_zero(op.after), "function must keep zero");
      check_apart(op.in2, op.out, true);
    } else {
      check(op.after == Function::none, "a function after an addition that is not there");
    }
    std::string why;
    const auto algorithm = static_cast<ConvAlgorithm>(number(p[15], 0, static_cast<int>(ConvAlgorithm::outputs), "algorithm"));
    op.plan = plan_conv(s, kernel, bias, program_->isa, algorithm, why);
    check(op.plan != nullptr, why);
    if (op.in2 >= 0) {
      constexpr std::int64_t kFloats = 65536;  // a chunk stays in a second-level cache
      op.after_slope = op.eps;
      op.chunk = static_cast<int>(std::clamp<std::int64_t>(kFloats / out.step() / 12 * 12, 12, out.channels + 11));
      op.scratch.chunk = round_to_line(op.chunk * out.step() + kVectorSlack);
    }
    op.scratch = scratch_for(op, in.channels, out.channels);
    check(op.scratch.shared + op.scratch.thread <= kMaxTensorFloats, "scratch too large");
  }

  void load_levels(Op& op, std::int64_t first, std::int64_t rho) {
    const int channels = at(op.out).channels;
    std::int64_t rows = 1;
    if (first != -1) {
      constexpr std::int64_t kHead = 3, kMost = 1 << 10;
      check(first >= 0 && first <= raw_.arg_count - kHead, "levels");
      const std::int64_t* const given = raw_.args + first;
      rows = number(given[0], 2, kMost, "number of levels");
      check(first <= raw_.arg_count - kHead - (rows - 1), "levels");
      op.level_bias = weights(given[1], rows * channels, "bias of levels");
      op.level_gain = weights(given[2], rows * channels, "gain of levels");
      for (std::int64_t edge = 0; edge < rows - 1; ++edge) {
        op.level_edges.push_back(number(given[kHead + edge], 0, channels, "edge of a level"));
        check(edge == 0 || op.level_edges.back() >= op.level_edges[static_cast<std::size_t>(edge) - 1], "edges fall");
      }
    }
    op.rho = weights(rho, rows * channels, "rho");
  }

  void load_pool(Op& op, const std::int64_t* p) {
    const Tensor &in = at(op.in), &out = at(op.out);
    check(in.kind == TensorKind::planes && out.kind == TensorKind::planes && in.channels == out.channels, "planes are pooled");
    op.pool = static_cast<Pool>(number(p[0], 0, 1, "pool"));
    PoolShape& w = op.window;
    w.kernel_h = number(p[1], 1, kMaxSide, "kernel");
    w.kernel_w = number(p[2], 1, kMaxSide, "kernel");
    w.stride_h = number(p[3], 1, kMaxSide, "stride");
    w.stride_w = number(p[4], 1, kMaxSide, "stride");
    w.pad_h = number(p[5], 0, w.kernel_h / 2, "padding");
    w.pad_w = number(p[6], 0, w.kernel_w / 2, "padding");
    w.dilation_h = number(p[7], 1, op.pool == Pool::max ? kMaxSide : 1, "dilation");
    w.dilation_w = number(p[8], 1, op.pool == Pool::max ? kMaxSide : 1, "dilation");
    w.divisor = number(p[9], 0, INT_MAX, "divisor");
    w.count_padding = number(p[10], 0, 1, "count padding") == 1;
    check(p[7] * (p[1] - 1) <= kMaxSide && p[8] * (p[2] - 1) <= kMaxSide, "window too wide");
    // The last window starts inside the image or its left padding; it may end beyond (ceil mode).
    check((out.shape.height - 1) * p[3] < in.shape.height + p[5] && (out.shape.width - 1) * p[4] < in.shape.width + p[6],
          "the result has another size");
    check_apart(op.in, op.out, false);
  }

  void load_concat(Op& op, const std::int64_t* p) {
    check(p[1] >= 1 && p[1] <= kMaxTensors && p[0] >= 0 && p[0] <= raw_.arg_count - p[1], "arguments");
    std::int64_t channels = 0;
    for (std::int64_t a = p[0]; a < p[0] + p[1]; ++a) {
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
  void find_image_reader() {
    constexpr std::int64_t kVector = 16;
    const Tensor& image = at(program_->input);
    const int tensor = program_->input;
    int reader = -1, readers = 0;
    for (int i = 1; i < static_cast<int>(program_->ops.size()); ++i) {
      const Op& op = program_->ops[static_cast<std::size_t>(i)];
      const bool reads = op.in == tensor || op.in2 == tensor ||
                         std::find(op.inputs.begin(), op.inputs.end(), tensor) != op.inputs.end();
      if (!reads) continue;
      ++readers;
      if (op.kind == OpKind::conv && op.in == tensor && op.in2 != tensor && conv_takes_bare(*op.plan)) reader = i;
    }
    const bool vectors = static_cast<std::int64_t>(image.shape.height) * image.shape.width % kVector == 0;
    if (readers == 1 && vectors) program_->image_reader = reader;
  }

  const RawProgram& raw_;
  std::unique_ptr<Program> program_;
  std::vector<bool> written_, layer_seen_;
  std::string where_ = "its start";
};

}  // namespace

std::unique_ptr<Program> load_program(const RawProgram& raw, Isa isa) { return Loader(raw, isa).load(); }

Lives find_lives(const Program& program) {
  const int ops = static_cast<int>(program.ops.size());
  Lives lives{std::vector<int>(program.tensors.size(), ops), std::vector<int>(program.tensors.size(), -1)};
  const auto touch = [&](int tensor, int op) {
    if (tensor < 0) return;
    const std::size_t t = static_cast<std::size_t>(tensor);
    lives.born[t] = std::min(lives.born[t], op);
    lives.last[t] = std::max(lives.last[t], op);
  };
  for (int i = 0; i < ops; ++i) {
    const Op& op = program.ops[static_cast<std::size_t>(i)];
    touch(op.in, i);
    touch(op.in2, i);
    touch(op.out, i);
    for (int input : op.inputs) touch(input, i);
  }
  return lives;
}

OpScratch scratch_for(const Op& op, int most_in, int most_out) {
  if (op.kind != OpKind::conv) return op.scratch;
  const ConvScratchFloats floats = conv_scratch(*op.plan, most_in, most_out);
  return {round_to_line(static_cast<std::int64_t>(floats.shared)), round_to_line(static_cast<std::int64_t>(floats.thread)), op.scratch.chunk};
}

void place_scratch(Program& program, int threads) {
  const Lives lives = find_lives(program);
  for (int i = 0; i < static_cast<int>(program.ops.size()); ++i) {
    Op& op = program.ops[static_cast<std::size_t>(i)];
    const std::int64_t size = op.scratch.total(threads);
    if (size == 0) continue;
    std::vector<std::pair<std::int64_t, std::int64_t>> taken;
    for (std::size_t t = 0; t < program.tensors.size(); ++t)
      if (lives.needs(t, i))
        taken.emplace_back(program.tensors[t].offset, program.tensors[t].offset + round_to_line(program.tensors[t].floats()));
    std::sort(taken.begin(), taken.end());
    std::int64_t offset = 0;
    for (const auto& [begin, end] : taken) {
      if (offset + size <= begin) break;
      offset = std::max(offset, end);
    }
    op.scratch_offset = offset;
    program.arena_floats = std::max(program.arena_floats, offset + size);
  }
}

}  // namespace penstock
