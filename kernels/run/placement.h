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
  std::vector<std::int64_t> spares;  // of each convolution: memory that nobody needs meanwhile; -1: the planes it does not compute
};

// Places tensors and scratch together, with room for all channels on so many threads, and says so in the program. Of the places that
// the program came with only this counts: which results lie where an input lay, and are written over it.
void place_program(Program& program, int threads);

// Closer together than the program says when gates leave channels out: fewer cache lines are touched, and more of them are near.
// `winners`, one number a gated layer, bounds every tensor's channels before anything has run. As the program says, with room for
// all channels, where that takes no more memory.
Placement place_for(const Program& program, int threads, const std::int32_t* winners);

}  // namespace penstock
