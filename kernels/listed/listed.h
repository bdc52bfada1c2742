// A convolution that computes only some pixels of its output: those of a list that the program holds, or those where a map of one
// channel is not zero for this image.
//
//     a fixed list:   out(q) = f(conv(x) at the listed pixel that is nearest to q)
//     a map m:        out(q) = f(m(q) * conv(x)(q) + shift), and f(shift) where m(q) = 0
#pragma once
#include <cstdint>
#include <vector>

#include "conv/sizes.h"
#include "listed/kernels.h"
#include "machine/cpu.h"

namespace penstock {

// The kernels of an instruction set that this machine has.
const ListedKernels& listed_kernels(Isa isa);

struct ListedPlan {
  ConvSizes shape;  // of one group
  const ListedKernels* kernels = nullptr;
  const float* weights = nullptr;     // [out][in][tap]
  const float* shift = nullptr;       // by output, or null
  std::vector<float> bias;            // by output
  std::vector<std::ptrdiff_t> taps;   // from a plane's base to each tap of output (0, 0)
  std::vector<std::int32_t> places;   // a fixed list as kernels take it; empty if a map decides
  std::vector<std::int32_t> nearest;  // for every output pixel, its place in the fixed list
  int pixels = 0;                     // of the fixed list
  int block = 1;                      // strips that are multiplied together
  bool fixed() const { return !places.empty(); }
  int tap_count() const { return shape.kernel_h * shape.kernel_w; }
  // Where the input of output pixel (y, x) lies, from that of (0, 0).
  std::int32_t place(int y, int x) const { return y * shape.stride_h * shape.input.pitch() + x * shape.stride_w; }
  // Pixels in whole strips.
  std::int64_t padded(std::int64_t count) const { return (count + kernels->strip - 1) / kernels->strip * kernels->strip; }
  std::int64_t most_pixels() const {
    return fixed() ? pixels : static_cast<std::int64_t>(shape.output.height) * shape.output.width;
  }
  // Floats of memory: sums, which threads share, and the gathered strips of one thread.
  std::int64_t sum_floats() const { return padded(most_pixels()) * shape.out_channels; }
  std::int64_t packed_floats() const { return static_cast<std::int64_t>(block) * shape.in_channels * tap_count() * kernels->strip; }
};

// block_floats: about how many floats of gathered input are multiplied together. pixels: the fixed list, increasing, or empty.
ListedPlan plan_listed(const ConvSizes& shape, Isa isa, const float* weights, const float* bias, const float* shift,
                       std::int64_t block_floats, const std::vector<std::int32_t>& pixels, std::vector<std::int32_t> nearest);

}  // namespace penstock
