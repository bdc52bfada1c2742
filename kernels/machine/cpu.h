// Which instruction sets the kernels are compiled for, and which of them this machine can run.
#pragma once

namespace penstock {

enum class Isa {
#define TARGET(name, architecture, runs_here, wide) name,
#include "machine/targets.def"
#undef TARGET
};

constexpr int kIsaCount = 0
#define TARGET(name, architecture, runs_here, wide) +1
#include "machine/targets.def"
#undef TARGET
    ;

// True when the set was compiled in and this machine (processor and operating system) runs it.
bool isa_available(Isa isa);

// The widest available set.
Isa best_isa();

// Whether its vectors are a whole cache line, 16 floats.
bool isa_has_wide_vectors(Isa isa);

// 64-bit ARM: whether the processor and the operating system support dot products of bytes (sdot) and products of matrices of bytes
// (usmmla).
bool cpu_has_dot_products();
bool cpu_has_matrix_products();

// As in targets.def.
const char* isa_name(Isa isa);

// Reads a name as printed by isa_name. Returns false, and leaves `isa` alone, for any other text.
bool parse_isa(const char* name, Isa& isa);

}  // namespace penstock
