// What a convolution of listed pixels hands to the kernels of one instruction set: plain numbers and pointers.
//
// Files compiled for a wide instruction set include this; it must define no functions (see conv/kernels.h).
#pragma once
#include <cstddef>
#include <cstdint>

namespace penstock {

struct ListedArgs {
  const float* input;           // plane 0, at its base
  std::ptrdiff_t in_stride;     // from one plane to the next
  const std::int32_t* in_list;  // channel of each stored plane
  int in_count, in_channels;
  const std::ptrdiff_t* taps;  // from the input pixel under output (0, 0), without padding, to each tap
  int tap_count;
  // Where the input of each listed pixel lies, from that of output (0, 0). The last one is repeated up to a whole strip.
  const std::int32_t* places;
  const float* weights;  // [out][in][tap]
  const float* bias;     // by output
  int out_channels;
  float* sums;          // [out][listed pixel], `step` apart
  std::ptrdiff_t step;  // a multiple of a strip
};

struct ListedKernels {
  int strip;  // pixels that are gathered and multiplied together
  // The sums of strips [begin, end) for every output. `packed` has (end - begin) * in_count * tap_count strips of room.
  void (*run)(const ListedArgs&, int strip_begin, int strip_end, float* packed);
};

// listed_kernels_<name>() for every instruction set; those of other architectures do not exist.
#define TARGET(name, architecture, runs_here, wide) const ListedKernels* listed_kernels_##name();
#include "machine/targets.def"
#undef TARGET

}  // namespace penstock
