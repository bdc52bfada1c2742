// k-winners-take-all: which channels of a gated convolution are computed for an image.
#pragma once
#include <cstdint>

#include "ops/ops.h"

namespace penstock {

// Clamps the finite saliencies `g` of all channels to g >= 0, writes the k = `wanted` largest of them, ties to the lower index and
// without those that are not above `threshold` (0 or more), to `list` in increasing order and their values to `gains`, and returns
// how many there are. `keys` is scratch. All arrays have room for `channels` values.
int choose_winners(const OpKernels& kernels, float* g, int channels, int wanted, float threshold, std::uint32_t* keys,
                   std::int32_t* list, float* gains);

}  // namespace penstock
