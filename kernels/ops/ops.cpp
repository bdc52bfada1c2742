#include "ops/ops.h"

#include <cstring>

#include "machine/targets.h"

namespace penstock {

#define TARGET(name, architecture, runs_here, wide) const OpKernels* op_kernels_##name();
#include "machine/targets.def"
#undef TARGET

const OpKernels& op_kernels(Isa isa) {
  static const OpKernels* const tables[] = {
#define TARGET(name, architecture, runs_here, wide) PENSTOCK_WHERE(architecture, op_kernels_##name(), nullptr),
#include "machine/targets.def"
#undef TARGET
  };
  return *tables[static_cast<int>(isa)];
}

void zero_padding(float* plane, Planes shape) {
  const std::ptrdiff_t pitch = shape.pitch();
  const auto zero = [](float* at, std::ptrdiff_t n) { std::memset(at, 0, sizeof(float) * static_cast<std::size_t>(n)); };
  if (shape.halo == 0) return;
  zero(plane, shape.origin());
  // Gaps are a value or three: too short for a call each.
  float* gap = plane + shape.origin() + shape.width;
  for (int y = 0; y + 1 < shape.height; ++y, gap += pitch) {
    gap[0] = 0.0f;
    for (int i = 1; i < shape.halo; ++i) gap[i] = 0.0f;
  }
  // From the end of the last row through the rows below it.
  zero(plane + shape.origin() + (shape.height - 1) * pitch + shape.width, static_cast<std::ptrdiff_t>(shape.halo) * (pitch + 1));
}

}  // namespace penstock
