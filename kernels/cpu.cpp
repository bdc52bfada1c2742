#include "cpu.h"

#include <cstring>

namespace penstock {

namespace {
constexpr const char* kNames[kIsaCount] = {"baseline", "avx2", "avx512"};
}

bool isa_available(Isa isa) {
  switch (isa) {
    case Isa::baseline:
      return true;
#if defined(__x86_64__)
    // The builtin asks the operating system too (XGETBV), not the processor alone.
    case Isa::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case Isa::avx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
#endif
    default:
      return false;
  }
}

Isa best_isa() {
  if (isa_available(Isa::avx512)) return Isa::avx512;
  if (isa_available(Isa::avx2)) return Isa::avx2;
  return Isa::baseline;
}

bool made_by_amd() {
#if defined(__x86_64__)
  return __builtin_cpu_is("amd");
#else
  return false;
#endif
}

const char* isa_name(Isa isa) { return kNames[static_cast<int>(isa)]; }

bool parse_isa(const char* name, Isa& isa) {
  for (int i = 0; i < kIsaCount; ++i) {
    if (std::strcmp(name, kNames[i]) == 0) {
      isa = static_cast<Isa>(i);
      return true;
    }
  }
  return false;
}

}  // namespace penstock
