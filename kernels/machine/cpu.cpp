#include "machine/cpu.h"

#include <cstring>
#include <string>

#include "machine/targets.h"

#if PENSTOCK_ARM64 && defined(__linux__)
#include <sys/auxv.h>
#elif PENSTOCK_ARM64 && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace penstock {
namespace {

// The builtin asks the operating system too (XGETBV), not the processor alone.
#define cpu_has(feature) (__builtin_cpu_supports(feature) != 0)

struct Target {
  const char* name;
  bool available;
  bool wide;
};

const Target& target(Isa isa) {
  static const Target targets[kIsaCount] = {
#define TARGET(name, architecture, runs_here, wide) {#name, PENSTOCK_WHERE(architecture, runs_here, false), wide},
#include "machine/targets.def"
#undef TARGET
  };
  return targets[static_cast<int>(isa)];
}

#if PENSTOCK_ARM64 && defined(__linux__)
// Bits of the kernel's interface, by number: older headers do not name them.
bool arm_feature(const char* name) {
  if (std::strcmp(name, "FEAT_DotProd") == 0) return (getauxval(AT_HWCAP) >> 20 & 1) != 0;  // HWCAP_ASIMDDP
  if (std::strcmp(name, "FEAT_I8MM") == 0) return (getauxval(AT_HWCAP2) >> 13 & 1) != 0;    // HWCAP2_I8MM
  return false;
}
#elif PENSTOCK_ARM64 && defined(__APPLE__)
bool arm_feature(const char* name) {
  int has = 0;
  std::size_t size = sizeof has;
  return sysctlbyname((std::string("hw.optional.arm.") + name).c_str(), &has, &size, nullptr, 0) == 0 && has != 0;
}
#else
bool arm_feature(const char*) { return false; }
#endif

}  // namespace

bool cpu_has_dot_products() { return arm_feature("FEAT_DotProd"); }

bool cpu_has_matrix_products() { return arm_feature("FEAT_I8MM"); }

bool isa_available(Isa isa) { return target(isa).available; }

bool isa_has_wide_vectors(Isa isa) { return target(isa).wide; }

const char* isa_name(Isa isa) { return target(isa).name; }

Isa best_isa() {
  for (int i = kIsaCount - 1; i > 0; --i)
    if (isa_available(static_cast<Isa>(i))) return static_cast<Isa>(i);
  return Isa::baseline;
}

bool parse_isa(const char* name, Isa& isa) {
  for (int i = 0; i < kIsaCount; ++i) {
    if (std::strcmp(name, isa_name(static_cast<Isa>(i))) == 0) {
      isa = static_cast<Isa>(i);
      return true;
    }
  }
  return false;
}

}  // namespace penstock
