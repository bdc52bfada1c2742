#include "run/process.h"

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace penstock {
namespace {

std::atomic<std::uint32_t> generation{0};

[[maybe_unused]] const bool watching = [] {
#if defined(__unix__) || defined(__APPLE__)
  return pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); }) == 0;
#else
  return false;
#endif
}();

}  // namespace

std::uint32_t process_generation() { return generation.load(std::memory_order_relaxed); }

}  // namespace penstock
