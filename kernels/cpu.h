// Which instruction sets the kernels are compiled for, and which of them this machine can run.
#pragma once

namespace penstock {

enum class Isa { baseline, avx2, avx512 };

constexpr int kIsaCount = 3;

// True when the set was compiled in and this machine (processor and operating system) runs it.
bool isa_available(Isa isa);

// The widest available set.
Isa best_isa();

// Whether a core keeps many lines on their way from a far cache or from memory, so that fetching ahead does not hold up what is
// loaded meanwhile. AMD's cores have 24 places for such lines and fetch to the second-level cache beside them; Ice Lake has 12.
bool fetches_many_lines();

// "baseline", "avx2", "avx512".
const char* isa_name(Isa isa);

// Reads a name as printed by isa_name. Returns false, and leaves `isa` alone, for any other text.
bool parse_isa(const char* name, Isa& isa);

}  // namespace penstock
