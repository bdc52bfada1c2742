// k-winners-take-all: which channels of a gated convolution are computed for an image.
#pragma once
#include <cstdint>

#include "ops/ops.h"

namespace penstock {

// Finds the winners of an image and returns how many there are: the `wanted` largest of the saliencies `g`, without those that are not
// above `threshold` (0 or more). Of equal saliencies the one with the lower index wins.
//
// `g` holds a finite saliency for each channel, and is clamped to g >= 0 in place. `list` receives the winners in increasing order,
// `gains` their saliencies. `keys` is scratch. All arrays have room for `channels` values.
int choose_winners(const OpKernels& kernels, float* g, int channels, int wanted, float threshold, std::uint32_t* keys,
                   std::int32_t* list, float* gains);

}  // namespace penstock
