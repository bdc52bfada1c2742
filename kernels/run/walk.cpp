#include "run/walk.h"

#include <algorithm>
#include <chrono>

#include "gate/winners.h"

namespace penstock {

void Runtime::Walk::start(const RunRequest& request, std::int64_t index) {
  const std::int64_t layers = program_.layers, width = runtime_.chosen_width();
  fault_ = RunFault{};
  far_ = false;
  image_number_ = index;
  image_ = request.images + index * runtime_.image_floats();
  result_ = request.results + index * runtime_.result_floats();
  macs_ = request.macs ? request.macs + index * layers : nullptr;
  active_ = request.active ? request.active + index * layers * 2 : nullptr;
  chosen_ = request.chosen ? request.chosen + index * width : nullptr;
  saliencies_ = request.saliencies ? request.saliencies + index * width : nullptr;
  algorithms_ = request.algorithms;
  nanoseconds_ = request.nanoseconds;
  std::fill(context_.summary_kind.begin(), context_.summary_kind.end(), -1);
  for (std::size_t t = 0; t < program_.tensors.size(); ++t) {
    context_.live[t].data = context_.arena.data() + placement_.tensors[t];
    context_.live[t].fill = nullptr;
  }
  if (chosen_) std::memset(chosen_, 0, static_cast<std::size_t>(width));
}

bool Runtime::Walk::run(std::size_t begin, std::size_t end) {
  for (std::size_t number = begin; number < end; ++number) {
    const Op& op = program_.ops[number];
    const auto before = nanoseconds_ ? std::chrono::steady_clock::now() : std::chrono::steady_clock::time_point();
    bool finite = true;
    if (takes_codes(op)) finite = run_codes(op);
    else if (op.kind != OpKind::conv && takes_pixels(op)) finite = run_pixels(op);
    else switch (op.kind) {
        case OpKind::import_image: finite = import_image(op, image_); break;
        case OpKind::export_result: finite = export_result(op, result_); break;
        case OpKind::depthwise:
        case OpKind::threshold_conv:
        case OpKind::conv: finite = conv(op); break;
        case OpKind::pool: pool(op); break;
        case OpKind::adaptive_pool: adaptive_pool(op); break;
        case OpKind::add: add(op); break;
        case OpKind::concat: concat(op); break;
        case OpKind::affine: affine(op); break;
        case OpKind::scale: finite = scale(op); break;
        case OpKind::linear: linear(op); break;
        case OpKind::pack: pack(op); break;
        case OpKind::channel_norm: channel_norm(op); break;
        case OpKind::spread: spread(op); break;
        case OpKind::listed: finite = listed(op); break;
      }
    if (!finite) {
      fault_ = {image_number_, static_cast<std::int64_t>(number), op.kind == OpKind::conv, far_};
      return false;
    }
    if (nanoseconds_) {
      const auto taken = std::chrono::steady_clock::now() - before;
      nanoseconds_[number] = std::chrono::duration_cast<std::chrono::nanoseconds>(taken).count();
    }
  }
  return true;
}

bool Runtime::Walk::is_finite(int t) {
  if (t < 0 || program_.is_bare(t) || tensor(t).is_codes()) return true;
  const Live& found = live(t);
  const Planes shape = tensor(t).shape;
  if (found.fill && !kernels_.all_finite(found.fill, tensor(t).channels)) return false;
  if (tensor(t).is_pixels()) {
    for (int y = 0; y < shape.height; ++y)
      for (int x = 0; x < shape.width; ++x)
        if (!kernels_.all_finite(pixel_at(t, y, x), found.count)) return false;
    return true;
  }
  if (tensor(t).layout == Layout::vector) return kernels_.all_finite(found.data, found.count);
  for (int p = 0; p < found.count; ++p)
    for (int y = 0; y < shape.height; ++y)
      if (!kernels_.all_finite(found.data + p * shape.stride() + shape.origin() + std::ptrdiff_t{y} * shape.pitch(), shape.width))
        return false;
  return true;
}

RunFault Runtime::Walk::find_fault() {
  for (std::size_t number = 0; number < program_.ops.size(); ++number) {
    if (!run(number, number + 1)) return fault_;
    if (!is_finite(program_.ops[number].out)) return {image_number_, static_cast<std::int64_t>(number), false, false};
  }
  return fault_;
}

void Runtime::Walk::note(const Op& op, std::int64_t macs, int read, int computed) {
  if (op.layer < 0) return;
  if (macs_) macs_[op.layer] = macs;
  if (active_) {
    active_[2 * op.layer] = read;
    active_[2 * op.layer + 1] = computed;
  }
}

bool Runtime::Walk::import_image(const Op& op, const float* image) {
  const Tensor& t = tensor(op.out);
  const std::int64_t area = static_cast<std::int64_t>(t.shape.height) * t.shape.width;
  make_dense(op.out);
  Live& out = live(op.out);
  const bool bare = program_.is_bare(op.out);
  if (bare) {
    out.data = const_cast<float*>(image);  // never written: no operation has it for its result
    const Op& reader = program_.ops[static_cast<std::size_t>(program_.image_reader)];
    // What the reader's gates will ask for anyway: a sum that is finite is a sum of finite values.
    if (reader.knob >= 0 && (reader.summary == Summary::l1 || reader.summary == Summary::l2)) {
      if (kernels_.all_finite(summaries(reader, out), out.count)) return true;
    }
  }
  std::atomic<bool> good{true};
  each(t.channels, t.channels * area, [&](int c, int) {
    const float* const from = image + c * area;
    if (!(bare ? kernels_.all_finite(from, area) : kernels_.import_plane(from, t.shape, out.data + c * t.step())))
      good.store(false);
  });
  return good.load();
}

bool Runtime::Walk::export_result(const Op& op, float* result) {
  const Tensor& t = tensor(op.in);
  const Live& in = live(op.in);
  const std::int64_t area = static_cast<std::int64_t>(t.shape.height) * t.shape.width;
  if (in.count < t.channels) std::memset(result, 0, sizeof(float) * static_cast<std::size_t>(t.channels * area));
  for (int p = 0; p < in.count; ++p) {
    if (t.layout == Layout::vector) result[in.list[p]] = in.data[p];
    else kernels_.export_plane(in.data + p * t.step(), t.shape, result + in.list[p] * area);
  }
  return kernels_.all_finite(result, t.channels * area);
}

const float* Runtime::Walk::summaries(const Op& op, const Live& in) {
  const Tensor& t = tensor(op.in);
  float* out = context_.summaries.data() + runtime_.list_offsets_[static_cast<std::size_t>(op.in)];
  int& kind = context_.summary_kind[static_cast<std::size_t>(op.in)];
  if (kind == static_cast<int>(op.summary)) return out;  // another gate has asked for the same
  if (t.is_pixels()) {
    summarise_pixels(op.in, op.summary, out);
    kind = static_cast<int>(op.summary);
    return out;
  }
  if (t.is_codes()) {
    const std::int64_t area = static_cast<std::int64_t>(t.shape.height) * t.shape.width;
    maps_.sum(codes_of(op.in), 0, in.count, op.summary == Summary::l1, context_.code_sums.data());
    for (int p = 0; p < in.count; ++p)
      out[p] = summary_of(context_.code_sums[static_cast<std::size_t>(p)], op.summary, area, t.quantised.scale);
    kind = static_cast<int>(op.summary);
    return out;
  }
  const bool bare = program_.is_bare(op.in);
  const Planes shape = bare ? Planes{t.shape.height, t.shape.width, 0} : t.shape;
  const std::int64_t step = bare ? static_cast<std::int64_t>(shape.height) * shape.width : t.step();
  each(in.count, in.count * step, [&](int p, int) { out[p] = kernels_.summarise(in.data + p * step, shape, op.summary); });
  kind = static_cast<int>(op.summary);
  return out;
}

void Runtime::Walk::summarise_plane(int t, int plane) {
  const int kind = runtime_.wanted_summaries_[static_cast<std::size_t>(t)];
  if (kind < 0) return;
  summary(t, plane) = kernels_.summarise(live(t).data + plane * tensor(t).step(), tensor(t).shape, static_cast<Summary>(kind));
}

void Runtime::Walk::note_summaries(int t) {
  context_.summary_kind[static_cast<std::size_t>(t)] = runtime_.wanted_summaries_[static_cast<std::size_t>(t)];
}

// g = relu(ss(x) phi + rho), and its winners. `level` is where the values of the level that serves this number of winners begin.
int Runtime::Walk::choose_winners(const Op& op, const Live& in, int wanted, std::int64_t level, std::int32_t* list) {
  const int channels = tensor(op.out).channels;
  const Row ss = with_summaries(op, in);
  float* const __restrict g = context_.saliency.data();
  each_block(channels, static_cast<std::int64_t>(ss.count) * channels / 2, [&](int begin, int end) {
    kernels_.combine_rows(ss.x, ss.list, ss.count, op.phi, op.rho + level, begin, end, channels, g);
  });
  // A NaN would win nothing, and so hide itself and what it comes from; an infinity would multiply a whole channel.
  if (!kernels_.all_finite(g, channels)) return -1;
  float* const gains = context_.gains.data();
  const int count = penstock::choose_winners(kernels_, g, channels, wanted, op.threshold, context_.keys.data(), list, gains);
  const std::int64_t at = runtime_.knob_offsets_[static_cast<std::size_t>(op.knob)];
  if (saliencies_) std::copy(g, g + channels, saliencies_ + at);
  if (op.level_gain)
    for (int p = 0; p < count; ++p) gains[p] *= op.level_gain[level + list[p]];
  if (chosen_)
    for (int p = 0; p < count; ++p) chosen_[at + list[p]] = 1;
  return count;
}

void Runtime::Walk::run_task(const Op& op, const ConvTask& task) {
  const int stages = conv_stages(*op.plan, task);
  for (int stage = 0; stage < stages; ++stage) run_stage(op, task, stage, 0, conv_units(*op.plan, task, stage));
}

void Runtime::Walk::run_stage(const Op& op, const ConvTask& task, int stage, int first, int last) {
  float* const shared = scratch(op);
  const OpScratch& floats = placement_.scratch[number_of(op)];
  float* const thread = shared + floats.shared;
  const int units = last - first;
  if (team_ == nullptr || units < 2) return run_conv(*op.plan, task, stage, first, last, ConvScratch{shared, thread});
  // Small pieces at the end even out what the threads take.
  const int parts = std::min(units, 8 * team_->threads());
  team_->run(parts, [&](int part, int member) {
    const int begin = first + static_cast<int>(static_cast<std::int64_t>(units) * part / parts);
    const int end = first + static_cast<int>(static_cast<std::int64_t>(units) * (part + 1) / parts);
    run_conv(*op.plan, task, stage, begin, end, ConvScratch{shared, thread + member * floats.thread});
  });
}

bool Runtime::Walk::choose_outputs(const Op& op, std::int32_t* winners, Outputs& outputs) {
  const int channels = tensor(op.out).channels;
  outputs = {runtime_.all_channels_.data(), channels, nullptr, nullptr};
  if (op.keeps_list) outputs = {live(op.in).list, live(op.in).count, nullptr, nullptr};
  if (op.knob < 0) return true;
  const int wanted = winners_of(op, channels, winners_);
  const auto edge = std::lower_bound(op.level_edges.begin(), op.level_edges.end(), wanted);
  const std::int64_t level = (edge - op.level_edges.begin()) * std::int64_t{channels};
  const int count = choose_winners(op, live(op.in), wanted, level, winners);
  outputs = {winners, count, context_.gains.data(), op.level_bias ? op.level_bias + level : nullptr};
  return count >= 0;
}

void Runtime::Walk::note_conv(const Op& op, std::int64_t macs, int computed) {
  const Tensor& t = tensor(op.out);
  const Live& in = live(op.in);
  const std::int64_t constants = in.fill ? tensor(op.in).channels - in.count : 0;
  if (op.knob >= 0) macs += (in.count + constants) * t.channels + std::int64_t{computed} * t.shape.height * t.shape.width;
  macs += constants * computed;
  note(op, macs, in.count, computed);
}

bool Runtime::Walk::conv(const Op& op) {
  const Live& in = live(op.in);
  Live& out = live(op.out);
  const Tensor& t = tensor(op.out);
  // A sum's list is the union, so the winners alone need a place of their own.
  Outputs outputs;
  if (!choose_outputs(op, op.in2 >= 0 ? context_.winners.data() : own_list(op.out), outputs)) return false;
  if (in.fill) outputs.bias = add_to_bias(op, in, outputs);
  const std::int32_t* const list = outputs.list;
  const int count = outputs.count;
  ConvTask task{in.data,
                in.list,
                in.count,
                out.data,
                list,
                count,
                outputs.gains,
                outputs.bias,
                team_ == nullptr ? 1 : team_->threads(),
                program_.is_bare(op.in) ? Layout::bare : Layout::planes};
  if (op.layer >= 0 && (macs_ || active_)) note_conv(op, conv_macs(*op.plan, task), count);
  decide_conv(*op.plan, task);
  if (algorithms_ && op.layer >= 0) algorithms_[op.layer] = algorithm_number(*task.algorithm);
  if (op.in2 >= 0) {
    if (t.is_pixels()) conv_add_pixels(op, task);
    else conv_add(op, task);
    return true;
  }
  out.list = list;
  out.count = count;
  if (op.keeps_list) out.fill = op.fill.data();
  if (count == 0) return true;
  if (t.is_pixels()) {
    // The sums come with the results where the next gate asks for means of magnitudes.
    const bool sums = runtime_.wanted_summaries_[static_cast<std::size_t>(op.out)] == static_cast<int>(Summary::l1);
    if (sums) task.sums = &summary(op.out, 0);
    add_upcoming(op, task);
    // More would drive out of L2 what this convolution reads itself.
    const std::int64_t most = program_.machine.core->l2_bytes / 16;
    if (task.later_floats > 0)
      task.later_count = static_cast<int>(std::min<std::int64_t>(task.later_count, most / task.later_floats));
    run_task(op, task);
    if (!sums) return true;
    const float area = static_cast<float>(std::int64_t{t.shape.height} * t.shape.width);
    for (int p = 0; p < count; ++p) summary(op.out, p) /= area;
    note_summaries(op.out);
    return true;
  }
  // Memory that nobody needs meanwhile. How much must not depend on where it lies, because results may.
  const std::int64_t spare = placement_.spares[number_of(op)];
  task.spare = spare >= 0 ? context_.arena.data() + spare : out.data + count * t.step();
  task.spare_floats = static_cast<std::size_t>((t.channels - count) * t.step());
  add_upcoming(op, task);
  run_task(op, task);
  return true;
}

// What the next gates or linear layer will read is fetched while the convolution runs.
void Runtime::Walk::add_upcoming(const Op& op, ConvTask& task) {
  const std::vector<Upcoming>& upcoming = runtime_.upcoming_[number_of(op)];
  if (upcoming.empty()) return;
  const int piece = Upcoming::piece(upcoming);
  const float** const later = context_.later.data();
  int count = 0;
  char* const wanted = context_.fresh.data();  // by channel
  for (const Upcoming& next : upcoming) {
    std::memset(wanted, 0, static_cast<std::size_t>(next.count));
    for (int t : next.tensors)
      for (int p = 0; p < live(t).count; ++p) wanted[live(t).list[p]] = 1;
    for (int at = 0; at < next.width; at += piece) {
      const float* const column = next.rows + std::min(at, next.width - piece);
      for (int c = 0; c < next.count; ++c) {
        later[count] = column + std::int64_t{c} * next.width;
        count += wanted[c];
      }
    }
  }
  task.later = later;
  task.later_count = count;
  task.later_floats = piece;
}

// The sum of a skip connection and a convolution, without a tensor for the convolution's own result: the skip's
// planes move to where the union of both lists wants them (often where they already lie), and the convolution is
// added a few planes at a time.
void Runtime::Walk::conv_add(const Op& op, const ConvTask& task) {
  const Tensor& t = tensor(op.out);
  const std::int32_t* const list = task.out_list;
  const int count = task.out_count;
  const Live skip = live(op.in2);
  Live& out = live(op.out);
  std::int32_t* const positions = context_.positions.data();  // of the convolution's planes in the union
  int n = skip.count + count;
  for (int a = 0, b = 0; a < skip.count && b < count;) {
    if (skip.list[a] == list[b]) --n;
    const std::int32_t channel = std::min(skip.list[a], list[b]);
    if (skip.list[a] == channel) ++a;
    if (list[b] == channel) ++b;
  }
  out.count = n;
  // From the back, so that a plane is moved before its place is taken. Planes that only the convolution fills
  // are not touched yet.
  std::vector<char>& fresh = context_.fresh;
  std::vector<char>& alone = context_.alone;
  std::int32_t* merged = context_.merged.data();
  const std::size_t bytes = sizeof(float) * static_cast<std::size_t>(t.step());
  for (int p = n - 1, a = skip.count - 1, b = count - 1; p >= 0; --p) {
    const bool takes_skip = a >= 0 && (b < 0 || skip.list[a] >= list[b]);
    const bool takes_conv = b >= 0 && (a < 0 || list[b] >= skip.list[a]);
    merged[p] = takes_skip ? skip.list[a] : list[b];
    alone[static_cast<std::size_t>(p)] = !takes_conv;
    if (takes_conv) {
      fresh[static_cast<std::size_t>(b)] = !takes_skip;
      positions[b--] = p;
    }
    if (takes_skip) {
      float* to = out.data + p * t.step();
      const float* from = skip.data + a-- * t.step();
      if (to != from) std::memcpy(to, from, bytes);
    }
  }
  if (n == t.channels) {
    out.list = runtime_.all_channels_.data();
  } else {
    std::copy(merged, merged + n, own_list(op.out));
    out.list = own_list(op.out);
  }
  const int chunk = op.chunk;
  const OpScratch& floats = placement_.scratch[number_of(op)];
  float* const planes = scratch(op) + floats.shared + runtime_.threads() * floats.thread;
  for (int first = 0; first < count; first += chunk) {
    const int some = std::min(chunk, count - first);
    ConvTask piece = task;
    piece.output = planes;
    piece.out_list = list + first;
    piece.out_count = some;
    decide_conv(*op.plan, piece);
    if (task.gain) piece.gain = task.gain + first;
    run_task(op, piece);
    each(some, some * t.step(), [&](int p, int) {
      float* to = out.data + positions[first + p] * t.step();
      if (fresh[static_cast<std::size_t>(first + p)])
        kernels_.affine(planes + p * t.step(), t.shape, 1.0f, 0.0f, op.after, op.after_slope, to, t.shape);
      else kernels_.add(to, t.shape, planes + p * t.step(), t.shape, op.after, op.after_slope, to, t.shape);
    });
  }
  if (op.after != Function::none)
    each(n, n * t.step(), [&](int p, int) {
      float* plane = out.data + p * t.step();
      if (alone[static_cast<std::size_t>(p)]) kernels_.affine(plane, t.shape, 1.0f, 0.0f, op.after, op.after_slope, plane, t.shape);
    });
}

}  // namespace penstock
