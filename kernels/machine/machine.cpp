#include "machine/machine.h"

#include <limits>

namespace penstock {
namespace {

constexpr int kKib = 1024;

// With AVX-512 a product takes half as long, so transforms of weights weigh more, and packing costs more than turning weights.
Tuning wide(Tuning t) {
  t.fresh_share = 0.4;
  t.outputs_fewest_pixels = 65;
  t.outputs_most_pixels = 1024;
  t.many_inputs = std::numeric_limits<int>::max();
  return t;
}

// name, L1, L2, line buffers, wide vectors in halves, tuning
const std::vector<Core> kCores = {
    {"Zen 3", 32 * kKib, 512 * kKib, 24, true, Tuning{}, wide(Tuning{})},
    {"Zen 4", 32 * kKib, 1024 * kKib, 24, true, Tuning{}, wide(Tuning{})},
    // Later and earlier cores of AMD are taken to be alike until one has been measured.
    {"AMD", 32 * kKib, 512 * kKib, 24, true, Tuning{}, wide(Tuning{})},
    {"Ice Lake", 48 * kKib, 1280 * kKib, 12, false, Tuning{}, wide(Tuning{})},
    // 64-bit ARM from Cortex-A76 on. It has not been measured on such a core: the tuning is that of narrow vectors elsewhere, and
    // kernels take their 32 registers from vec_neon.h.
    {"ARM64", 64 * kKib, 512 * kKib, 12, false, Tuning{}, Tuning{}},
    {"unknown", 32 * kKib, 256 * kKib, 12, false, Tuning{}, wide(Tuning{})},
};

const char* name_of_this_core() {
#if defined(__x86_64__)
  if (__builtin_cpu_is("znver3")) return "Zen 3";
#if defined(__clang__) ? __clang_major__ >= 16 : __GNUC__ >= 13
  if (__builtin_cpu_is("znver4")) return "Zen 4";
#endif
  if (__builtin_cpu_is("amd")) return "AMD";
  if (__builtin_cpu_is("icelake-server") || __builtin_cpu_is("icelake-client")) return "Ice Lake";
#elif defined(__aarch64__)
  return "ARM64";
#endif
  return "unknown";
}

const Core& find_core(const std::string& name) {
  for (const Core& core : kCores)
    if (name == core.name) return core;
  return kCores.back();
}

}  // namespace

const std::vector<Core>& known_cores() { return kCores; }

const Core& this_core() {
  static const Core& core = find_core(name_of_this_core());
  return core;
}

Machine machine_of(const Core& core, Isa isa) {
  Machine machine;
  machine.isa = isa;
  machine.core = &core;
  machine.tuning = isa_has_wide_vectors(isa) ? core.wide : core.narrow;
  return machine;
}

bool set_tuning(Tuning& tuning, const std::string& name, double value) {
#define TUNE(type, field, given)             \
  if (name == #field) {                      \
    tuning.field = static_cast<type>(value); \
    return true;                             \
  }
#include "machine/tuning.def"
#undef TUNE
  return false;
}

}  // namespace penstock
