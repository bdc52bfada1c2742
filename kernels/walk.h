// One image on its way through a program (private to runtime.cpp and walk.cpp).
#pragma once
#include <algorithm>
#include <atomic>
#include <cstring>

#include "placement.h"
#include "runtime.h"

namespace penstock {

// A tensor as it is for this image: which channels are stored.
struct Live {
  float* data = nullptr;
  const std::int32_t* list = nullptr;  // channel of each stored plane, strictly increasing
  int count = 0;
};

struct Runtime::Context {
  // `pieces`: of rows that one convolution fetches for whoever comes next, at most.
  Context(const Program& program, std::size_t pieces);
  ConvBuffer arena;
  std::vector<std::int32_t> lists;
  std::vector<Live> live;
  std::vector<float> summaries;        // per tensor, as lists
  std::vector<int> summary_kind;       // per tensor; -1: not known yet
  std::vector<float> saliency, gains;
  std::vector<std::uint32_t> keys;
  std::vector<std::int32_t> positions, merged, winners;
  std::vector<char> fresh, alone;
  std::vector<const float*> later;
};

class Runtime::Walk {
 public:
  Walk(const Runtime& runtime, Context& context, const Placement& placement, Team* team, const std::int32_t* winners)
      : runtime_(runtime), program_(*runtime.program_), kernels_(op_kernels(program_.isa)), context_(context),
        placement_(placement), team_(team), winners_(winners) {}

  // Image number `index` of the request; nothing runs yet.
  void start(const RunRequest& request, std::int64_t index);
  // Operations [begin, end), in order. False when the image holds a value that is not finite.
  bool run(std::size_t begin, std::size_t end);

 private:
  bool import_image(const Op& op, const float* image);
  void export_result(const Op& op, float* result);
  void conv(const Op& op);
  void conv_add(const Op& op, const ConvTask& task);
  void add_upcoming(const Op& op, ConvTask& task);
  void run_task(const Op& op, const ConvTask& task);
  std::size_t number_of(const Op& op) const { return static_cast<std::size_t>(&op - program_.ops.data()); }
  float* scratch(const Op& op) { return context_.arena.data() + placement_.scratch_offsets[number_of(op)]; }
  int choose_winners(const Op& op, const Live& in, int wanted, std::int64_t level, std::int32_t* list);
  const float* summaries(const Op& op, const Live& in);
  // The summary of a plane that has just been made and is still near, if a gate will ask for it; `note_summaries` says that
  // all planes of the tensor have theirs.
  void summarise_plane(int t, int plane);
  void note_summaries(int t);
  // Whether a tensor is the image in the caller's memory.
  bool is_bare(int t) const { return t == program_.input && program_.image_reader >= 0; }
  void pool(const Op& op);
  void adaptive_pool(const Op& op);
  void add(const Op& op);
  // With its summary. Both tensors lie alike.
  void copy_plane(int from, int plane, int to, int to_plane);
  void concat(const Op& op);
  void affine(const Op& op);
  void scale(const Op& op);
  void linear(const Op& op);
  void pack(const Op& op);
  void channel_norm(const Op& op);

  const Tensor& tensor(int t) const { return program_.tensors[static_cast<std::size_t>(t)]; }
  Live& live(int t) { return context_.live[static_cast<std::size_t>(t)]; }
  std::int32_t* own_list(int t) {
    return context_.lists.data() + runtime_.list_offsets_[static_cast<std::size_t>(t)];
  }
  void make_dense(int t) {
    live(t).list = runtime_.all_channels_.data();
    live(t).count = tensor(t).channels;
  }
  void fill_plane(float* plane, Planes shape, float value);
  void note(const Op& op, std::int64_t macs, int read, int computed);

  // Calls work(p, member) for every p below count; `floats` is the work of all of them together.
  template <typename Work>
  void each(int count, std::int64_t floats, Work&& work) {
    constexpr std::int64_t kWorthSharing = 16384;
    if (team_ == nullptr || floats < kWorthSharing || count < 2) {
      for (int p = 0; p < count; ++p) work(p, 0);
      return;
    }
    const int parts = std::min(count, 4 * team_->threads());
    team_->run(parts, [&](int part, int member) {
      const int begin = static_cast<int>(static_cast<std::int64_t>(count) * part / parts);
      const int end = static_cast<int>(static_cast<std::int64_t>(count) * (part + 1) / parts);
      for (int p = begin; p < end; ++p) work(p, member);
    });
  }

  // Calls work(begin, end) for blocks of `outputs`, one a thread: rows of weights are read the faster the longer their pieces.
  template <typename Work>
  void each_block(int outputs, std::int64_t floats, Work&& work) {
    constexpr int kLine = 16;
    const int threads = team_ == nullptr ? 1 : team_->threads();
    const int block = ((outputs + threads - 1) / threads + kLine - 1) / kLine * kLine;
    each((outputs + block - 1) / block, floats, [&](int b, int) { work(b * block, std::min(outputs, (b + 1) * block)); });
  }

  const Runtime& runtime_;
  const Program& program_;
  const OpKernels& kernels_;
  Context& context_;
  const Placement& placement_;
  Team* team_;
  const std::int32_t* winners_;
  const float* image_ = nullptr;
  float* result_ = nullptr;
  // Where this image's records go; null when nobody asks.
  std::int64_t* macs_ = nullptr;
  std::int32_t* active_ = nullptr;
  std::uint8_t* chosen_ = nullptr;
  float* saliencies_ = nullptr;
  std::int32_t* algorithms_ = nullptr;
  std::int64_t* nanoseconds_ = nullptr;
};

}  // namespace penstock
