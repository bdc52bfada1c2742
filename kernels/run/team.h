// A small team of threads that share one piece of work at a time.
//
// `run(parts, work)` calls work(part, member) once for every part, on the caller and on the workers; it returns when all
// are done. Each member begins with a share of its own, the same in every piece of work, so that what a layer leaves in a
// core's cache is what the next layer reads there. A member that has finished its share takes parts from the others. Which
// thread runs which part is therefore left to chance, and a part must write nothing that another part writes. `member` (0 is
// the caller) says which thread it runs on, for scratch memory.
// Workers spin for a moment after a piece of work (the next layer is microseconds away), then sleep: an idle
// engine uses no processor time.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "run/process.h"

namespace penstock {

// The workers and what they share. One process's own: see Team.
class Crew {
 public:
  using Call = void (*)(void*, int, int);

  explicit Crew(int threads);
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  bool try_lead() { return lead_.try_lock(); }
  void stop_leading() { lead_.unlock(); }
  void run(int parts, Call call, void* work);

 private:
  void serve(int member);
  void take_parts(std::uint64_t ticket, int member);
  void take_share(std::uint64_t ticket, int share, int member);
  int threads() const { return static_cast<int>(next_.size()); }
  int first_of(int share, int parts) const { return static_cast<int>(std::int64_t{parts} * share / threads()); }

  // A share's next part, with the ticket of its piece of work in the upper half, so that a worker that comes late can
  // never take a part of a later piece by mistake. On a cache line of its own.
  struct alignas(64) Next {
    std::atomic<std::uint64_t> value{0};
  };

  std::vector<Next> next_;  // by member
  std::vector<std::thread> workers_;
  std::mutex lead_;
  std::mutex sleep_;
  std::condition_variable wake_;
  std::atomic<int> sleepers_{0};
  std::atomic<bool> quit_{false};
  // The piece of work at hand.
  std::atomic<std::uint64_t> ticket_{0};
  std::atomic<int> done_{0};
  std::atomic<int> parts_{0};
  std::atomic<Call> call_{nullptr};
  std::atomic<void*> work_{nullptr};
};

// A forked child has a team too: its workers start when it first leads.
class Team {
 public:
  explicit Team(int threads) : threads_(threads), crew_([threads] { return std::make_unique<Crew>(threads); }) {}

  int threads() const { return threads_; }

  // One caller at a time leads the team; others, who get false, do their work alone.
  bool try_lead() { return crew_.get().try_lead(); }
  void stop_leading() { crew_.get().stop_leading(); }

  template <typename Work>
  void run(int parts, Work&& work) {
    crew_.get().run(
        parts, [](void* w, int part, int member) { (*static_cast<std::remove_reference_t<Work>*>(w))(part, member); },
        const_cast<void*>(static_cast<const void*>(&work)));
  }

 private:
  const int threads_;
  PerProcess<Crew> crew_;
};

}  // namespace penstock
