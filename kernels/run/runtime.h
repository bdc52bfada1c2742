// Runs a checked program on images.
//
// A run takes one Context (an arena and its channel lists) from a pool, so several callers may run at the same time.
// One image is split inside its layers over the team; of several images each is run whole by one thread. Either
// way a value is computed by the same instructions in the same order, so results never depend on the split.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "run/program.h"
#include "run/team.h"

namespace penstock {

struct Placement;

struct RunRequest {
  const float* images = nullptr;  // count images, channel by channel, packed
  std::int64_t count = 0;
  const std::int32_t* winners = nullptr;  // k of every gated layer, within [1, C_out]
  float* results = nullptr;               // count times result_floats()
  // What the run did, each may be null:
  std::int64_t* macs = nullptr;         // [count][layers]
  std::int32_t* active = nullptr;       // [count][layers][2]: channels read, channels computed
  std::uint8_t* chosen = nullptr;       // [count][chosen_width()]: 1 for a winner that was computed
  float* saliencies = nullptr;          // [count][chosen_width()]: g, before the winners are chosen
  std::int64_t* nanoseconds = nullptr;  // [operations], of the last image; only with count == 1
  std::int32_t* algorithms = nullptr;   // [layers], of the last image; only with count == 1
  // Asked between images, by the calling thread only and not more often than every tenth of a second; true ends the run. May be null.
  bool (*stop)() = nullptr;
};

// Where a value was met that is not finite, or values far beyond what codes can hold.
struct RunFault {
  std::int64_t image = -1;  // -1: nowhere
  std::int64_t op = -1;     // the operation whose result it is; 0 is the image itself
  bool gate = false;        // in the saliencies of the operation's gate
  bool far = false;         // finite, but far beyond the range of int8 codes (far_limit in int8/pixels.h)
};

struct Stopped : std::runtime_error {
  Stopped() : std::runtime_error("the run was stopped") {}
};

class Runtime {
 public:
  Runtime(std::unique_ptr<Program> program, int threads);
  ~Runtime();

  const Program& program() const { return *program_; }
  int threads() const { return team_.threads(); }
  std::int64_t result_floats() const;
  std::int64_t image_floats() const;
  std::int64_t chosen_width() const;
  // One context: tensors, and the scratch of the convolutions, for one image on `threads` threads.
  std::int64_t context_bytes() const;
  // Takes the memory of one context now rather than in the first run; throws std::bad_alloc.
  void reserve();

  // The first image that holds a NaN or an infinity, or whose gates or result do, and the first operation to yield one (results
  // are then undefined). A run that `stop` has ended throws Stopped.
  RunFault run(const RunRequest& request);

 private:
  struct Context;
  class Lease;
  class Walk;
  std::unique_ptr<Context> take();
  void give_back(std::unique_ptr<Context> context);
  std::shared_ptr<const Placement> placement_for(const std::int32_t* winners);

  // What callers share, behind one lock.
  struct Pool {
    std::mutex lock;
    std::vector<std::unique_ptr<Context>> contexts;
    // Of the last run, and the winners it was made for.
    std::shared_ptr<const Placement> placement;
    std::vector<std::int32_t> placed_winners;
  };

  std::unique_ptr<Program> program_;
  Team team_;
  PerProcess<Pool> pool_;
  std::vector<std::int32_t> all_channels_;  // 0, 1, 2, ...: the list of a dense tensor
  std::size_t deep_ = 0;                    // operations from here on run side by side for several images
  std::int64_t together_ = 1;               // how many images
  // Rows of weights that a gate or linear layer will read, and the tensors whose channels say which.
  struct Upcoming {
    const float* rows = nullptr;
    int count = 0, width = 0;
    std::vector<int> tensors;
    // What comes next is fetched in pieces of one size: its floats, and how many pieces that makes at most.
    static int piece(const std::vector<Upcoming>& all);
    static std::size_t pieces(const std::vector<Upcoming>& all);
  };
  // For every convolution: the rows that later operations read, as far as they are known once the convolution has its winners. Short
  // rows are left out, since they stay in the caches, and so are convolutions that prefetch nothing.
  static std::vector<std::vector<Upcoming>> find_upcoming(const Program& program);
  std::vector<std::vector<Upcoming>> upcoming_;
  // The same for convolutions of codes, which fetch the weights of the next ones too.
  struct UpcomingCodes {
    const Op* reader = nullptr;
    int channels = 0, width = 0;  // of the reader's input and output
    std::vector<int> tensors;
  };
  static std::vector<std::vector<UpcomingCodes>> find_upcoming_codes(const Program& program);
  std::vector<std::vector<UpcomingCodes>> upcoming_codes_;
  std::size_t most_pieces_ = 0;
  std::vector<char> never_negative_;        // of each tensor
  std::vector<int> wanted_summaries_;       // of each tensor: the kind that the first gate to read it asks for, or -1
  std::vector<std::int64_t> list_offsets_;  // where a tensor's own list lies in Context::lists
  std::vector<std::int64_t> knob_offsets_;  // where a gated layer lies in a row of `chosen`
};

}  // namespace penstock
