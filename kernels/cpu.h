// Which instruction sets the kernels are compiled for, and which of them this machine can run.
#pragma once

namespace penstock {

enum class Isa { baseline, avx2, avx512 };

constexpr int kIsaCount = 3;

// True when the set was compiled in and this machine (processor and operating system) runs it.
bool isa_available(Isa isa);

// The widest available set.
Isa best_isa();

// Some measured choices differ between makers (conv_plan.h says which), and so may the last bits of results, as they do between
// instruction sets.
bool made_by_amd();

// "baseline", "avx2", "avx512".
const char* isa_name(Isa isa);

// Reads a name as printed by isa_name. Returns false, and leaves `isa` alone, for any other text.
bool parse_isa(const char* name, Isa& isa);

}  // namespace penstock
