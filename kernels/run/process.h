// What belongs to one process: threads and locks do not survive a fork, though their memory does.
//
// PerProcess<T> holds a T that is made again in a forked child the first time it is asked for there. The parent's is then left
// alone: its threads do not exist in the child and its locks may be held by threads that do not exist either, so that it
// can be neither used nor destroyed.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

namespace penstock {

// How many forks lie between this process and the one that loaded the library.
std::uint32_t process_generation();

template <typename T>
class PerProcess {
 public:
  explicit PerProcess(std::function<std::unique_ptr<T>()> make) : make_(std::move(make)) { held_.store(new Held(make_())); }
  ~PerProcess() {
    Held* const held = held_.load();
    if (held->generation == process_generation()) delete held;
  }
  PerProcess(const PerProcess&) = delete;
  PerProcess& operator=(const PerProcess&) = delete;

  T& get() {
    Held* held = held_.load(std::memory_order_acquire);
    if (held->generation == process_generation()) return *held->value;
    auto fresh = std::make_unique<Held>(make_());
    // Several threads of the child may come here at once; one of them wins.
    if (held_.compare_exchange_strong(held, fresh.get())) return *fresh.release()->value;
    return *held->value;
  }

 private:
  struct Held {
    explicit Held(std::unique_ptr<T> made) : value(std::move(made)) {}
    const std::unique_ptr<T> value;
    const std::uint32_t generation = process_generation();
  };
  const std::function<std::unique_ptr<T>()> make_;
  std::atomic<Held*> held_{nullptr};
};

// Guards what is made at its first use. Threads that come meanwhile wait; a child that was forked in the middle begins again, since
// the thread that was making it is not there.
class FirstUse {
 public:
  template <typename Make>
  void ensure(const Make& make) const {
    std::uint64_t seen = state_.load(std::memory_order_acquire);
    while (seen != kMade) {
      const std::uint64_t making = kFirstMaker + process_generation();
      if (seen == making) {
        std::this_thread::yield();
        seen = state_.load(std::memory_order_acquire);
      } else if (state_.compare_exchange_strong(seen, making, std::memory_order_acquire)) {
        make();  // must not throw
        state_.store(kMade, std::memory_order_release);
        return;
      }
    }
  }

 private:
  static constexpr std::uint64_t kNotMade = 0, kMade = 1, kFirstMaker = 2;
  mutable std::atomic<std::uint64_t> state_{kNotMade};
};

}  // namespace penstock
