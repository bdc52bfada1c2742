#include "run/cores.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

namespace penstock {

void each_on_cores(std::size_t count, const std::function<void(std::size_t)>& work) {
  constexpr std::size_t kMostThreads = 8;
  std::vector<std::exception_ptr> thrown(count);
  std::atomic<std::size_t> next{0};
  const auto take = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        thrown[i] = std::current_exception();
      }
    }
  };
  const std::size_t threads = std::min({count, kMostThreads, static_cast<std::size_t>(std::thread::hardware_concurrency())});
  std::vector<std::thread> helpers;
  try {
    while (helpers.size() + 1 < threads) helpers.emplace_back(take);
  } catch (const std::system_error&) {
    // A machine that gives no more threads works on those it gave.
  }
  take();
  for (std::thread& helper : helpers) helper.join();
  for (const std::exception_ptr& problem : thrown)
    if (problem) std::rethrow_exception(problem);
}

}  // namespace penstock
