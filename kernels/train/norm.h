// The gated layer's norm for training, in as few passes over memory as it takes; channels last.
//
// Maps are [image][pixel][channel]; numbers for an image's channel are [image][channel]. With o = a z + b, clamped at
// zero if `relu`, and s = sum over pixels of |o|:
//
//   norm_moments    sum of z - pivot, and of its square
//   norm_apply      o and s
//   norm_sums       of h and of h z, where h = the gradient of z's own product: m (g + e sgn(o)), m = 0 where o was clamped
//   norm_gradient   a h + k1 z + k0          k1, k0: [image][channel], through the batch's statistics
//
// g is the gradient with respect to o and e that with respect to s. Each image is summed on its own and in order, so no result
// depends on the number of threads.
#pragma once
#include <cstddef>
#include <cstdint>

#include "machine/cpu.h"

namespace penstock {

class Team;

struct NormShape {
  std::int64_t images, pixels, channels;
  bool relu;
};

struct NormMaps {
  const float* z = nullptr;      // [image][pixel][channel]
  const float* g = nullptr;      // like z
  const float* scale = nullptr;  // a [image][channel]
  const float* shift = nullptr;  // b [image][channel]
  const float* extra = nullptr;  // e [image][channel]
};

void norm_moments(Isa isa, Team& team, const NormShape& s, const float* z, const float* pivot, float* sums, float* squares);
void norm_apply(Isa isa, Team& team, const NormShape& s, const NormMaps& maps, float* out, float* sizes);
void norm_sums(Isa isa, Team& team, const NormShape& s, const NormMaps& maps, float* sums, float* products);
void norm_gradient(Isa isa, Team& team, const NormShape& s, const NormMaps& maps, const float* k1, const float* k0, float* dz);

// One image with one instruction set.
struct TrainNormKernels {
  void (*moments)(const NormShape& s, const float* z, const float* pivot, float* sums, float* squares);
  void (*apply)(const NormShape& s, const NormMaps& image, float* out, float* sizes);
  void (*sums)(const NormShape& s, const NormMaps& image, float* sums, float* products);
  void (*gradient)(const NormShape& s, const NormMaps& image, const float* k1, const float* k0, float* dz);
};

}  // namespace penstock
