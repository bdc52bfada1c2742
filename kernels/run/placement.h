// Where tensors and scratch lie in the arena while images run at one budget.
#pragma once
#include <cstdint>
#include <vector>

#include "run/program.h"

namespace penstock {

// In floats from the arena's start.
struct Placement {
  std::vector<std::int64_t> tensors;
  std::vector<OpScratch> scratch;  // of each operation
  std::vector<std::int64_t> scratch_offsets;
  std::vector<std::int64_t>
      spares;  // of each convolution: memory that is free while it runs; -1: the planes that it does not compute
};

// Places tensors and scratch in one arena, with room for all channels and this many threads, and writes the offsets into the program.
// Of the offsets that the program came with only one thing is kept: which results overwrite their input.
void place_program(Program& program, int threads);

// A tighter placement for runs in which gates skip channels: fewer cache lines are touched, so more of them stay in L1 and L2.
// `winners`, one number for each gated layer, bounds the channels of every tensor before anything has run. If placing all channels
// takes no more memory, the program's own placement is returned.
Placement place_for(const Program& program, int threads, const std::int32_t* winners);

}  // namespace penstock
