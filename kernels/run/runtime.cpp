#include "run/runtime.h"

#include <algorithm>
#include <chrono>

#include "run/sources.h"
#include "run/walk.h"

namespace penstock {
namespace {

// How often a run asks whether it should stop. Asking may have to wait for other threads.
constexpr auto kStopInterval = std::chrono::milliseconds(100);

// The first operation from which on every convolution has more weights than its feature maps have values. From there on it pays to
// use a weight for several images while it is in the cache.
std::size_t first_deep_op(const Program& program) {
  std::size_t deep = program.ops.size();
  for (std::size_t i = program.ops.size(); i-- > 0;) {
    const Op& op = program.ops[i];
    if (op.kind == OpKind::import_image || op.kind == OpKind::listed) break;
    if (op.kind == OpKind::conv) {
      const Tensor& in = program.tensors[static_cast<std::size_t>(op.in)];
      const Tensor& out = program.tensors[static_cast<std::size_t>(op.out)];
      if ((op.int8 ? int8_plan_bytes(*op.int8) / 4 : conv_weights(*op.plan)) < in.floats() + out.floats()) break;
    }
    deep = i;
  }
  return deep;
}

// A kernel may read (never write) kVectorSlack floats past the last plane.
std::int64_t context_floats(const Program& program) { return (program.arena_floats + kVectorSlack + 15) / 16 * 16; }

// Tensors that come from an activation without negative values.
std::vector<char> find_never_negative(const Program& program) {
  std::vector<char> found(program.tensors.size(), 0);
  const auto is_relu = [](Function f) { return f == Function::relu || f == Function::relu6; };
  for (const Op& op : program.ops) {
    if (op.out < 0) continue;
    char& out = found[static_cast<std::size_t>(op.out)];
    switch (op.kind) {
      case OpKind::conv: out = is_relu(op.in2 >= 0 ? op.after : op.function); break;
      case OpKind::add:
      case OpKind::listed:
      case OpKind::affine: out = is_relu(op.function); break;
      case OpKind::pool:
      case OpKind::adaptive_pool:
      case OpKind::pack: out = found[static_cast<std::size_t>(op.in)]; break;
      default: break;
    }
  }
  return found;
}

}  // namespace

std::vector<std::vector<Runtime::Upcoming>> Runtime::find_upcoming(const Program& program) {
  const Sources sources(program);
  std::vector<std::vector<Upcoming>> all(program.ops.size());
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    if (program.ops[i].kind != OpKind::conv || program.ops[i].int8) continue;
    for (std::size_t next = i + 1; next < program.ops.size(); ++next) {
      const Op& reader = program.ops[next];
      if (reader.kind != OpKind::conv && reader.kind != OpKind::linear) continue;
      const Tensor& from = program.tensors[static_cast<std::size_t>(reader.in)];
      const float* rows = reader.kind == OpKind::conv ? reader.phi : from.layout == Layout::vector ? reader.weights : nullptr;
      const int width = program.tensors[static_cast<std::size_t>(reader.out)].channels;
      if (rows != nullptr && std::int64_t{from.channels} * width >= program.machine.tuning.far_rows) {
        std::vector<int> tensors = sources.known(i, reader.in);
        if (tensors.empty()) break;
        all[i].push_back({rows, from.channels, width, std::move(tensors)});
      }
      if (reader.kind == OpKind::linear || (reader.plan && conv_fetches_later(*reader.plan))) break;
    }
  }
  return all;
}

int Runtime::Upcoming::piece(const std::vector<Upcoming>& all) {
  int piece = kMostLaterFloats;
  for (const Upcoming& next : all) piece = std::min(piece, next.width);
  return piece;
}

std::size_t Runtime::Upcoming::pieces(const std::vector<Upcoming>& all) {
  const int size = piece(all);
  std::size_t count = 0;
  for (const Upcoming& next : all)
    count += static_cast<std::size_t>(next.count) * static_cast<std::size_t>((next.width + size - 1) / size);
  return count;
}

Runtime::Context::Context(const Program& program, std::size_t pieces) {
  arena.allocate(static_cast<std::size_t>(context_floats(program)));
  std::size_t channels = 0;
  for (const Tensor& t : program.tensors) {
    live.emplace_back();
    channels += static_cast<std::size_t>(t.channels);
  }
  lists.resize(channels);
  summaries.resize(channels);
  if (std::any_of(program.tensors.begin(), program.tensors.end(), [](const Tensor& t) { return t.filled; })) fills.resize(channels);
  summary_kind.assign(program.tensors.size(), -1);
  const std::size_t widest = static_cast<std::size_t>(program.max_channels);
  // Sums of pixels are written in whole vectors.
  const std::size_t whole = static_cast<std::size_t>(round_to_line(program.max_channels));
  saliency.resize(whole);
  gains.resize(whole);
  constants.resize(widest);
  bias.resize(widest);
  keys.resize(widest);
  positions.resize(widest);
  merged.resize(widest + 16);  // whole vectors
  winners.resize(widest);
  fresh.resize(widest);
  alone.resize(widest);
  code_sums.resize(widest);
  std::size_t pixels = 0;
  for (const Op& op : program.ops)
    if (op.listed && !op.listed->fixed())
      pixels = std::max(pixels, static_cast<std::size_t>(op.listed->padded(op.listed->most_pixels() + 1)));
  pixel_places.resize(pixels);
  pixel_results.resize(pixels);
  pixel_factors.resize(pixels);
  later.resize(pieces + 1);  // one more than needed: a branchless loop writes past the last piece
  later_channels.resize(kLaterReaders * widest);
}

Runtime::Runtime(std::unique_ptr<Program> program, int threads)
    : program_(std::move(program)), team_(threads), pool_([] { return std::make_unique<Pool>(); }) {
  place_program(*program_, threads);
  std::int64_t offset = 0;
  for (const Tensor& t : program_->tensors) {
    list_offsets_.push_back(offset);
    offset += t.channels;
  }
  offset = 0;
  for (int channels : program_->knob_channels) {
    knob_offsets_.push_back(offset);
    offset += channels;
  }
  knob_offsets_.push_back(offset);
  all_channels_.resize(static_cast<std::size_t>(program_->max_channels));
  for (std::size_t c = 0; c < all_channels_.size(); ++c) all_channels_[c] = static_cast<std::int32_t>(c);
  upcoming_ = find_upcoming(*program_);
  upcoming_codes_ = find_upcoming_codes(*program_);
  for (const std::vector<Upcoming>& next : upcoming_) most_pieces_ = std::max(most_pieces_, Upcoming::pieces(next));
  deep_ = first_deep_op(*program_);
  never_negative_ = find_never_negative(*program_);
  wanted_summaries_.assign(program_->tensors.size(), -1);
  for (const Op& op : program_->ops) {
    if (op.kind != OpKind::conv || op.knob < 0) continue;
    int& wanted = wanted_summaries_[static_cast<std::size_t>(op.in)];
    if (wanted < 0) wanted = static_cast<int>(op.summary);
  }
  // A product's summary follows from that of what is multiplied, which its maker can give for little (Walk::scale_pixels).
  for (std::size_t i = program_->ops.size(); i-- > 0;) {
    const Op& op = program_->ops[i];
    if (op.kind != OpKind::scale || !program_->tensors[static_cast<std::size_t>(op.in)].is_pixels()) continue;
    int& wanted = wanted_summaries_[static_cast<std::size_t>(op.in)];
    if (wanted < 0) wanted = wanted_summaries_[static_cast<std::size_t>(op.out)];
  }
  const Tuning& tuning = program_->machine.tuning;
  together_ = std::clamp<std::int64_t>(tuning.together_bytes / context_bytes(), 1, tuning.images_together);
}

Runtime::~Runtime() = default;

std::int64_t Runtime::result_floats() const {
  const Tensor& t = program_->tensors[static_cast<std::size_t>(program_->output)];
  return static_cast<std::int64_t>(t.channels) * t.shape.height * t.shape.width;
}

std::int64_t Runtime::image_floats() const {
  const Tensor& t = program_->tensors[static_cast<std::size_t>(program_->input)];
  return static_cast<std::int64_t>(t.channels) * t.shape.height * t.shape.width;
}

std::int64_t Runtime::chosen_width() const { return knob_offsets_.back(); }

std::int64_t Runtime::context_bytes() const { return context_floats(*program_) * static_cast<std::int64_t>(sizeof(float)); }

void Runtime::reserve() { give_back(take()); }

std::unique_ptr<Runtime::Context> Runtime::take() {
  Pool& pool = pool_.get();
  {
    std::lock_guard<std::mutex> lock(pool.lock);
    if (!pool.contexts.empty()) {
      std::unique_ptr<Context> context = std::move(pool.contexts.back());
      pool.contexts.pop_back();
      return context;
    }
  }
  return std::make_unique<Context>(*program_, most_pieces_);
}

void Runtime::give_back(std::unique_ptr<Context> context) {
  Pool& pool = pool_.get();
  std::lock_guard<std::mutex> lock(pool.lock);
  pool.contexts.push_back(std::move(context));
}

std::shared_ptr<const Placement> Runtime::placement_for(const std::int32_t* winners) {
  Pool& pool = pool_.get();
  std::lock_guard<std::mutex> lock(pool.lock);
  if (pool.placement == nullptr || !std::equal(pool.placed_winners.begin(), pool.placed_winners.end(), winners)) {
    pool.placement = std::make_shared<const Placement>(place_for(*program_, team_.threads(), winners));
    pool.placed_winners.assign(winners, winners + program_->knob_channels.size());
  }
  return pool.placement;
}

RunFault Runtime::run(const RunRequest& request) {
  const bool leads = team_.threads() > 1 && team_.try_lead();
  struct Release {
    Team* team;
    ~Release() {
      if (team) team->stop_leading();
    }
  } release{leads ? &team_ : nullptr};

  const std::shared_ptr<const Placement> placement = placement_for(request.winners);
  RunFault fault;
  std::mutex fault_lock;
  std::atomic<bool> stopped{false};
  auto asked = std::chrono::steady_clock::now();
  // Whether the run shall end; only the caller, member 0, asks.
  const auto ends = [&](int member) {
    if (request.stop && member == 0 && !stopped.load(std::memory_order_relaxed)) {
      const auto now = std::chrono::steady_clock::now();
      if (now - asked >= kStopInterval) {
        asked = now;
        if (request.stop()) stopped.store(true, std::memory_order_relaxed);
      }
    }
    return stopped.load(std::memory_order_relaxed);
  };
  // Images [first, last), each with its context: one after the other while feature maps are large, then side by side.
  const auto run_some = [&](std::unique_ptr<Context>* contexts, Team* team, std::int64_t first, std::int64_t last) {
    std::vector<Walk> walks;
    for (std::int64_t i = first; i < last; ++i) {
      Walk walk(*this, *contexts[walks.size()], *placement, team, request.winners);
      walk.start(request, i);
      walk.run(0, deep_);
      walks.push_back(walk);
    }
    for (std::size_t op = deep_; op < program_->ops.size(); ++op)
      for (Walk& walk : walks)
        if (walk.fault().image < 0) walk.run(op, op + 1);
    for (const Walk& walk : walks) {
      if (walk.fault().image < 0) continue;
      std::lock_guard<std::mutex> lock(fault_lock);
      if (fault.image < 0 || walk.fault().image < fault.image) fault = walk.fault();
    }
  };

  // Whole images for every thread while there are enough; what is left over is split inside its layers.
  const std::int64_t members = leads ? team_.threads() : 1;
  const std::int64_t whole = request.count / members * members;
  if (whole > 0) {
    const std::int64_t share = whole / members, together = std::min(share, together_);
    const std::int64_t groups = members * ((share + together - 1) / together);
    std::vector<std::unique_ptr<Context>> contexts;
    for (std::int64_t m = 0; m < members * together; ++m) contexts.push_back(take());
    const auto run_group = [&](std::int64_t group, int member) {
      if (ends(member)) return;
      run_some(&contexts[static_cast<std::size_t>(member * together)], nullptr, group * whole / groups,
               (group + 1) * whole / groups);
    };
    constexpr std::int64_t kMostParts = 1 << 30;
    for (std::int64_t first = 0; first < groups; first += kMostParts) {
      const std::int64_t some = std::min(groups - first, kMostParts);
      if (leads) {
        team_.run(static_cast<int>(some), [&](int part, int member) { run_group(first + part, member); });
      } else {
        for (std::int64_t part = 0; part < some; ++part) run_group(first + part, 0);
      }
    }
    for (auto& context : contexts) give_back(std::move(context));
  }
  if (whole < request.count) {
    std::unique_ptr<Context> context = take();
    for (std::int64_t i = whole; i < request.count && !ends(0); ++i) run_some(&context, release.team, i, i + 1);
    give_back(std::move(context));
  }
  if (stopped.load()) throw Stopped();
  if (fault.op > 0) {
    // A bad result may come from a much earlier layer; the caller wants to know the first one that yields a bad value.
    std::unique_ptr<Context> context = take();
    Walk walk(*this, *context, *placement, nullptr, request.winners);
    walk.start(request, fault.image);
    fault = walk.find_fault();
    give_back(std::move(context));
  }
  return fault;
}

}  // namespace penstock
