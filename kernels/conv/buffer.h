// Floats that a plan, a program or an image on its way keeps: 64-byte aligned, and on large pages when there are many,
// because lists jump through them and small pages would cost a table walk at nearly every jump.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace penstock {

class ConvBuffer {
 public:
  void allocate(std::size_t floats) {
    constexpr std::size_t kLargePage = std::size_t{2} << 20;
    const std::size_t bytes = floats * sizeof(float);
    const std::size_t alignment = bytes >= kLargePage ? kLargePage : 64;
    const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    void* memory = std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
    if (memory == nullptr) throw std::bad_alloc();
#if defined(__linux__)
    // A hint: refusing it changes nothing but speed.
    if (alignment == kLargePage) (void)madvise(memory, rounded, MADV_HUGEPAGE);
#endif
    data_.reset(static_cast<float*>(memory));
  }
  // `slack` zeros follow.
  void assign(const float* from, std::size_t floats, std::size_t slack) {
    allocate(floats + slack);
    if (floats > 0) std::memcpy(data_.get(), from, floats * sizeof(float));
    std::memset(data_.get() + floats, 0, slack * sizeof(float));
  }
  const float* data() const { return data_.get(); }
  float* data() { return data_.get(); }

 private:
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  std::unique_ptr<float, Free> data_;
};

}  // namespace penstock
