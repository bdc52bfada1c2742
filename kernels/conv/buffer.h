// Floats that a plan, a program or an image on its way keeps: 64-byte aligned, and on large pages when there are many,
// because lists jump through them and small pages would cost a table walk at nearly every jump.
#pragma once
#include <cstddef>
#include <cstring>
#include <memory>

namespace penstock {

class ConvBuffer {
 public:
  ConvBuffer() = default;
  ConvBuffer(ConvBuffer&&) = default;
  ConvBuffer& operator=(ConvBuffer&&) = default;
  void allocate(std::size_t floats) {
    const std::size_t bytes = floats * sizeof(float);
    data_ = whole_pages(bytes, bytes >= kLargePage ? kLargePage : 64);
  }
  // For what a plan keeps as long as its network lives: buffers of less than a large page share large pages with others. Memory
  // comes back when all of these are gone.
  void allocate_shared(std::size_t floats);
  // `slack` zeros follow.
  void assign(const float* from, std::size_t floats, std::size_t slack) {
    allocate_shared(floats + slack);
    if (floats > 0) std::memcpy(data_.get(), from, floats * sizeof(float));
    std::memset(data_.get() + floats, 0, slack * sizeof(float));
  }
  const float* data() const { return data_.get(); }
  float* data() { return data_.get(); }

 private:
  static constexpr std::size_t kLargePage = std::size_t{2} << 20;

  static std::shared_ptr<float> whole_pages(std::size_t bytes, std::size_t alignment);

  std::shared_ptr<float> data_;
};

}  // namespace penstock
