// What a processor is like, as data: facts of its core, and the numbers that planning follows on it.
//
// A core is a row of the table in machine.cpp. Planners are given a Machine and ask it; none of them knows a processor's name.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "machine/cpu.h"

namespace penstock {

struct Tuning {
#define TUNE(type, name, value) type name = value;
#include "machine/tuning.def"
#undef TUNE
};

struct Core {
  const char* name;
  int l1_bytes, l2_bytes;  // of one core
  // Cache lines on their way from L3 and memory at a time. What is fetched ahead waits in the same buffers as what is loaded.
  int line_buffers;
  // Vectors of 16 floats run as two halves: fewer products then count for more than fuller vectors.
  bool wide_in_halves;
  Tuning narrow;  // with vectors of 8 floats or fewer
  Tuning wide;    // with vectors of 16
};

// Every known core; the last one stands for all others.
const std::vector<Core>& known_cores();

// What a processor's generation is called, from what CPUID and /proc/cpuinfo say; empty where it is not known.
const char* processor_name(const std::string& vendor, int family, int model);

// The core that this process runs on.
const Core& this_core();

struct Machine {
  Isa isa = Isa::baseline;
  const Core* core = nullptr;
  Tuning tuning;

  // Whether fetching many lines ahead leaves enough buffers for what is loaded meanwhile.
  bool fetches_many() const { return core->line_buffers >= 24; }
};

// `core` with one instruction set.
Machine machine_of(const Core& core, Isa isa);
inline Machine this_machine(Isa isa) { return machine_of(this_core(), isa); }

// Sets one number of the tuning by name; false when there is none of that name. For sweeps.
bool set_tuning(Tuning& tuning, const std::string& name, double value);

}  // namespace penstock
