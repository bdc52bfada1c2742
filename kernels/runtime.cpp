#include "runtime.h"

#include "walk.h"

namespace penstock {
namespace {

// A kernel may read (never write) kVectorSlack floats past the last plane.
std::int64_t context_floats(const Program& program) { return (program.arena_floats + kVectorSlack + 15) / 16 * 16; }

}  // namespace

Runtime::Context::Context(const Program& program) {
  arena.allocate(static_cast<std::size_t>(context_floats(program)));
  std::size_t channels = 0;
  for (const Tensor& t : program.tensors) {
    Live l;
    l.data = arena.data() + t.offset;
    live.push_back(l);
    channels += static_cast<std::size_t>(t.channels);
  }
  lists.resize(channels);
  summaries.resize(channels);
  summary_kind.assign(program.tensors.size(), -1);
  const std::size_t widest = static_cast<std::size_t>(program.max_channels);
  saliency.resize(widest);
  gains.resize(widest);
  keys.resize(widest);
  positions.resize(widest);
  merged.resize(widest);
  winners.resize(widest);
  fresh.resize(widest);
  alone.resize(widest);
}

Runtime::Runtime(std::unique_ptr<Program> program, int threads) : program_(std::move(program)), team_(threads) {
  place_scratch(*program_, threads);
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
  pool_.push_back(std::make_unique<Context>(*program_));
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

std::int64_t Runtime::context_bytes() const {
  return context_floats(*program_) * static_cast<std::int64_t>(sizeof(float));
}

std::unique_ptr<Runtime::Context> Runtime::take() {
  {
    std::lock_guard<std::mutex> lock(pool_lock_);
    if (!pool_.empty()) {
      std::unique_ptr<Context> context = std::move(pool_.back());
      pool_.pop_back();
      return context;
    }
  }
  return std::make_unique<Context>(*program_);
}

void Runtime::give_back(std::unique_ptr<Context> context) {
  std::lock_guard<std::mutex> lock(pool_lock_);
  pool_.push_back(std::move(context));
}

std::int64_t Runtime::run(const RunRequest& request) {
  const bool leads = team_.threads() > 1 && team_.try_lead();
  struct Release {
    Team* team;
    ~Release() { if (team) team->stop_leading(); }
  } release{leads ? &team_ : nullptr};

  std::atomic<std::int64_t> bad{-1};
  const auto run_one = [&](Context& context, Team* team, std::int64_t i) {
    Walk walk(*this, context, team, request.winners);
    if (walk.run(request.images + i * image_floats(), request.results + i * result_floats(), request, i)) return;
    std::int64_t seen = bad.load();
    while ((seen < 0 || i < seen) && !bad.compare_exchange_weak(seen, i)) {
    }
  };

  // Whole images for every thread while there are enough; what is left over is split inside its layers.
  const std::int64_t members = leads ? team_.threads() : 1;
  std::int64_t next = 0;
  if (leads && request.count >= members) {
    std::vector<std::unique_ptr<Context>> contexts;
    for (std::int64_t m = 0; m < members; ++m) contexts.push_back(take());
    const std::int64_t whole = request.count / members * members;
    constexpr std::int64_t kMostParts = 1 << 30;
    for (; next < whole; next += std::min(whole - next, kMostParts)) {
      const std::int64_t first = next;
      team_.run(static_cast<int>(std::min(whole - next, kMostParts)), [&](int part, int member) {
        run_one(*contexts[static_cast<std::size_t>(member)], nullptr, first + part);
      });
    }
    for (auto& context : contexts) give_back(std::move(context));
  }
  if (next < request.count) {
    std::unique_ptr<Context> context = take();
    for (; next < request.count; ++next) run_one(*context, release.team, next);
    give_back(std::move(context));
  }
  return bad.load();
}

}  // namespace penstock
