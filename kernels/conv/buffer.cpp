#include "conv/buffer.h"

#include <cstdlib>
#include <mutex>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace penstock {

std::shared_ptr<float> ConvBuffer::whole_pages(std::size_t bytes, std::size_t alignment) {
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* const memory = std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
  if (memory == nullptr) throw std::bad_alloc();
#if defined(__linux__)
  // A hint: refusing it changes nothing but speed.
  if (alignment == kLargePage) (void)madvise(memory, rounded, MADV_HUGEPAGE);
#endif
  return std::shared_ptr<float>(static_cast<float*>(memory), [](float* p) { std::free(p); });
}

void ConvBuffer::allocate_shared(std::size_t floats) {
  // Few floats stay in the caches, and sanitizers watch the ends of every buffer only where it is alone.
  constexpr std::size_t kFewest = std::size_t{16} << 10, kBlock = 8 * kLargePage;
  const std::size_t bytes = (floats * sizeof(float) + 63) / 64 * 64;
#if defined(__SANITIZE_ADDRESS__)
  constexpr bool kWatched = true;
#else
  constexpr bool kWatched = false;
#endif
  if (kWatched || bytes < kFewest || bytes >= kLargePage) return allocate(floats);
  static std::mutex mutex;
  static std::weak_ptr<float> block;  // those who live in it keep it
  static std::size_t used;
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<float> shared = block.lock();
  if (shared == nullptr || used + bytes > kBlock) {
    shared = whole_pages(kBlock, kLargePage);
    block = shared;
    used = 0;
  }
  float* const here = shared.get() + used / sizeof(float);
  used += bytes;
  data_ = std::shared_ptr<float>(std::move(shared), here);
}

}  // namespace penstock
