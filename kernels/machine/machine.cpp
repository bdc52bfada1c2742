#include "machine/machine.h"

#include <cstring>
#include <limits>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

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

// Golden Cove multiplies twice as fast as it packs planes or sums single groups, and its L2 holds both summands of a block. In int8, L2
// holds a unit's tiles beside the filters of a panel, and L3 is slow: filters are made anew rather than kept there.
Tuning golden_cove(Tuning t) {
  t.planes_groups = 0.2;
  t.planes_one_tap_large = 0.5;
  t.pixels_sum = 10;
  t.int8_panel_bytes = 700 << 10;
  t.int8_winograd_far_bytes = 1360 << 10;
  return t;
}

// Measured on Cascade Lake alone: 1x1 convolutions of large maps, with the sums behind them, are faster in pixels. In int8, weights of
// more than 200 KB have left L2 when they are needed, although the layer before fetched them.
Tuning skylake(Tuning t) {
  t.planes_one_tap_large = 0.5;
  t.pixels_sum = 10;
  t.int8_near_bytes = 200 << 10;
  return t;
}

// Zen 5 server cores run wide vectors whole, and L3 answers at half the speed of L2: nothing is fetched ahead for later int8 layers, and
// transformed filters of int8 that come from L3 cost little. Residual sums of large maps are faster in pixels. Kernels of several taps
// on small maps are about as fast in both layouts, and so lie as what is around them.
Tuning zen5(Tuning t) {
  t.planes_one_tap_large = 0.5;
  t.planes_winograd_small = t.planes_taps_small = t.pixels_small;
  t.pixels_sum = 10;
  t.int8_kept_bytes = 3 << 20;
  t.int8_winograd_bytes = 800 << 10;
  t.int8_filter_cycles = 110;
  t.int8_transform_share = 0.65;
  t.int8_far_rate = 40;
  t.int8_fetch_bytes = 0;
  return t;
}

// name, L1, L2, line buffers, wide vectors in halves, tuning
const std::vector<Core> kCores = {
    {"Zen 3", 32 * kKib, 512 * kKib, 24, true, Tuning{}, wide(Tuning{})},
    {"Zen 4", 32 * kKib, 1024 * kKib, 24, true, Tuning{}, wide(Tuning{})},
    {"Zen 5", 48 * kKib, 1024 * kKib, 24, false, Tuning{}, zen5(wide(Tuning{}))},
    // Later and earlier cores of AMD are taken to be alike until one has been measured.
    {"AMD", 32 * kKib, 512 * kKib, 24, true, Tuning{}, wide(Tuning{})},
    // Server cores with AVX-512: Skylake-SP, Cascade Lake, Cooper Lake.
    {"Skylake", 32 * kKib, 1024 * kKib, 12, false, Tuning{}, skylake(wide(Tuning{}))},
    {"Ice Lake", 48 * kKib, 1280 * kKib, 12, false, Tuning{}, wide(Tuning{})},
    // Sapphire Rapids and Emerald Rapids.
    {"Golden Cove", 48 * kKib, 2048 * kKib, 16, false, Tuning{}, golden_cove(wide(Tuning{}))},
    // 64-bit ARM from Cortex-A76 on. It has not been measured on such a core: the tuning is that of narrow vectors elsewhere, and
    // kernels take their 32 registers from vec_neon.h.
    {"ARM64", 64 * kKib, 512 * kKib, 12, false, Tuning{}, Tuning{}},
    {"unknown", 32 * kKib, 256 * kKib, 12, false, Tuning{}, wide(Tuning{})},
};

// How a core is recognised: by the vendor, family and models that CPUID reports; what it is called, and its row above. The compiler's
// names (__builtin_cpu_is) are not asked: GCC 12 takes a Zen 4 for a Zen 3.
struct Recognised {
  const char* vendor;
  int family, first_model, last_model;
  const char *name, *core;
};
constexpr Recognised kRecognised[] = {
    {"AuthenticAMD", 23, 0x00, 0x2f, "Zen", "AMD"},
    {"AuthenticAMD", 23, 0x30, 0xff, "Zen 2", "AMD"},
    {"AuthenticAMD", 25, 0x10, 0x1f, "Zen 4", "Zen 4"},
    {"AuthenticAMD", 25, 0x60, 0xaf, "Zen 4", "Zen 4"},
    {"AuthenticAMD", 25, 0x00, 0x5f, "Zen 3", "Zen 3"},
    {"AuthenticAMD", 26, 0x00, 0xff, "Zen 5", "Zen 5"},
    {"GenuineIntel", 6, 85, 85, "Skylake-X", "Skylake"},
    {"GenuineIntel", 6, 106, 108, "Ice Lake", "Ice Lake"},
    {"GenuineIntel", 6, 125, 126, "Ice Lake", "Ice Lake"},
    {"GenuineIntel", 6, 143, 143, "Sapphire Rapids", "Golden Cove"},
    {"GenuineIntel", 6, 207, 207, "Emerald Rapids", "Golden Cove"},
};

const Recognised* recognise(const std::string& vendor, int family, int model) {
  for (const Recognised& r : kRecognised)
    if (vendor == r.vendor && family == r.family && model >= r.first_model && model <= r.last_model) return &r;
  return nullptr;
}

const char* name_of_this_core() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(0, &a, &b, &c, &d)) return "unknown";
  char vendor[13] = {};
  std::memcpy(vendor, &b, 4);
  std::memcpy(vendor + 4, &d, 4);
  std::memcpy(vendor + 8, &c, 4);
  if (!__get_cpuid(1, &a, &b, &c, &d)) return "unknown";
  unsigned family = a >> 8 & 15, model = a >> 4 & 15;
  if (family == 6 || family == 15) model += (a >> 16 & 15) << 4;
  if (family == 15) family += a >> 20 & 255;
  if (const Recognised* found = recognise(vendor, static_cast<int>(family), static_cast<int>(model))) return found->core;
  return std::strcmp(vendor, "AuthenticAMD") == 0 ? "AMD" : "unknown";
#elif defined(__aarch64__)
  return "ARM64";
#else
  return "unknown";
#endif
}

const Core& find_core(const std::string& name) {
  for (const Core& core : kCores)
    if (name == core.name) return core;
  return kCores.back();
}

}  // namespace

const std::vector<Core>& known_cores() { return kCores; }

const char* processor_name(const std::string& vendor, int family, int model) {
  const Recognised* const found = recognise(vendor, family, model);
  return found ? found->name : "";
}

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
