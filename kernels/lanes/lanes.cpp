#include "lanes/lanes.h"

#include <algorithm>
#include <cstring>

#include "conv/plan.h"
#include "machine/targets.h"

namespace penstock {

const LanesKernels& lanes_kernels(Isa isa) {
  static const LanesKernels* const tables[] = {
#define TARGET(name, architecture, runs_here, wide) PENSTOCK_WHERE(architecture, lanes_kernels_##name(), nullptr),
#include "machine/targets.def"
#undef TARGET
  };
  return *tables[static_cast<int>(isa)];
}

void clear_pixel_padding(float* map, Planes shape, std::ptrdiff_t pixel) {
  if (shape.halo == 0) return;
  const auto clear = [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
    std::memset(map + begin * pixel, 0, sizeof(float) * static_cast<std::size_t>((end - begin) * pixel));
  };
  clear(0, shape.origin());
  for (int y = 0; y < shape.height; ++y) {
    const std::ptrdiff_t gap = shape.origin() + static_cast<std::ptrdiff_t>(y) * shape.pitch() + shape.width;
    clear(gap, gap + shape.halo);
  }
  clear(shape.origin() + static_cast<std::ptrdiff_t>(shape.height) * shape.pitch(),
        static_cast<std::ptrdiff_t>(pixel_count(shape)));
}

bool set_spread(const LanesKernels& kernels, const std::int32_t* from, int from_count, const std::int32_t* to, int to_count,
                std::int32_t* first_piece, LanesPiece* pieces) {
  if (from_count == to_count && std::equal(to, to + to_count, from)) return false;
  const int lanes = kernels.lanes;
  int count = 0, place = 0;
  for (int p = 0; p < to_count; ++p) {
    if (p % lanes == 0) first_piece[p / lanes] = count;
    while (place < from_count && from[place] < to[p]) ++place;
    if (place == from_count || from[place] != to[p]) continue;
    const bool begins = count == first_piece[p / lanes] || place - pieces[count - 1].from >= kernels.pick_span;
    if (begins) {
      pieces[count].from = place;
      pieces[count].step = 0;
      std::fill(pieces[count].places, pieces[count].places + 16, -1);
      ++count;
    }
    pieces[count - 1].places[p % lanes] = static_cast<std::int32_t>(place - pieces[count - 1].from);
  }
  first_piece[(to_count + lanes - 1) / lanes] = count;
  return true;
}

LanesOutput lanes_output(const ConvPlan& plan, const ConvTask& task, const float* gain, const float* offset) {
  const Planes& p = plan.shape.output;
  const std::ptrdiff_t pixel = pixel_floats(task.out_count);
  return {task.output + p.origin() * pixel,
          pixel,
          p.pitch() * pixel,
          p.height,
          p.width,
          gain,
          offset,
          plan.low,
          plan.high,
          plan.curve,
          plan.shape.leaky_slope};
}

}  // namespace penstock
