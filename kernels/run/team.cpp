#include "run/team.h"

#include <chrono>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace penstock {
namespace {

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

constexpr auto kSpin = std::chrono::microseconds(60);
constexpr int kSpinsBetweenClockReads = 64;
constexpr std::uint64_t kPartBits = 32;
constexpr std::uint64_t kClosed = 0x7fffffffu;  // more than any number of parts

}  // namespace

Crew::Crew(int threads) : next_(static_cast<std::size_t>(threads)) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { serve(i); });
}

Crew::~Crew() {
  {
    std::lock_guard<std::mutex> lock(sleep_);
    quit_.store(true);
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void Crew::take_share(std::uint64_t ticket, int share, int member) {
  std::atomic<std::uint64_t>& next = next_[static_cast<std::size_t>(share)].value;
  std::uint64_t seen = next.load(std::memory_order_acquire);
  while (true) {
    if ((seen >> kPartBits) != (ticket & 0xffffffffu)) return;
    const int part = static_cast<int>(seen & 0xffffffffu);
    if (part >= first_of(share + 1, parts_.load(std::memory_order_relaxed))) return;
    const Call call = call_.load(std::memory_order_relaxed);
    void* const work = work_.load(std::memory_order_relaxed);
    // If this succeeds the piece is still open: its leader waits for this part, so call and work are its own.
    if (!next.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel)) continue;
    call(work, part, member);
    done_.fetch_add(1, std::memory_order_acq_rel);
    seen = next.load(std::memory_order_acquire);
  }
}

void Crew::take_parts(std::uint64_t ticket, int member) {
  for (int i = 0; i < threads(); ++i) take_share(ticket, (member + i) % threads(), member);
}

void Crew::run(int parts, Call call, void* work) {
  if (parts <= 0) return;
  if (workers_.empty() || parts == 1) {
    for (int part = 0; part < parts; ++part) call(work, part, 0);
    return;
  }
  const std::uint64_t ticket = ticket_.load(std::memory_order_relaxed) + 1;
  const std::uint64_t mark = (ticket & 0xffffffffu) << kPartBits;
  done_.store(0, std::memory_order_relaxed);
  // Close the old piece before changing what belongs to it: its ticket no longer matches from here on.
  for (Next& next : next_) next.value.store(mark | kClosed, std::memory_order_seq_cst);
  parts_.store(parts, std::memory_order_relaxed);
  call_.store(call, std::memory_order_relaxed);
  work_.store(work, std::memory_order_relaxed);
  for (int share = 0; share < threads(); ++share) {
    next_[static_cast<std::size_t>(share)].value.store(mark | static_cast<std::uint64_t>(first_of(share, parts)),
                                                       std::memory_order_release);
  }
  ticket_.store(ticket, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    {
      std::lock_guard<std::mutex> lock(sleep_);
    }
    wake_.notify_all();
  }
  take_parts(ticket, 0);
  int spins = 0;
  while (done_.load(std::memory_order_acquire) < parts) {
    relax();
    // The missing part may sit on a thread that has lost its processor: give ours away.
    if (++spins > 2000) std::this_thread::yield();
  }
}

void Crew::serve(int member) {
  std::uint64_t seen = 0;
  while (true) {
    auto until = std::chrono::steady_clock::now() + kSpin;
    int spins = 0;
    while (ticket_.load(std::memory_order_acquire) == seen && !quit_.load(std::memory_order_relaxed)) {
      relax();
      if (++spins % kSpinsBetweenClockReads == 0 && std::chrono::steady_clock::now() > until) break;
    }
    if (ticket_.load(std::memory_order_acquire) == seen) {
      std::unique_lock<std::mutex> lock(sleep_);
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(lock, [&] { return ticket_.load(std::memory_order_seq_cst) != seen || quit_.load(); });
      sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    }
    if (quit_.load()) return;
    seen = ticket_.load(std::memory_order_acquire);
    take_parts(seen, member);
  }
}

}  // namespace penstock
