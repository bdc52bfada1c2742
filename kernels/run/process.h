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

}  // namespace penstock
