// The direct algorithm on codes: every tap of every active input is multiplied. The kernels are direct.inl.
#include <algorithm>

#include "int8/kernels.h"

namespace penstock {
namespace {

bool fits(const Int8Plan&) { return true; }
bool suits(const Int8Plan& plan) { return !is_depthwise(plan); }

// Cycles of a task, roughly, for a 3x3 layer of stride 1. Fitted to layers on AVX512-VNNI and AVX2; only the order among the
// algorithms counts.
double cost(const Int8Plan& plan, int in_count, int out_count) {
  const Int8Kernels& k = *plan.kernels;
  const double vectors = (out_count + k.lanes - 1) / k.lanes, groups = (in_count + k.group - 1) / k.group;
  const double pixels = static_cast<double>(plan.shape.output.width) * plan.shape.output.height;
  const double one = k.gather_panel == nullptr ? 6.0 : has_far_filters(plan) ? 27.0 : 15.0;
  const double gathering = all_active(plan, in_count, out_count) ? 0.0 : one;
  const double product = k.gather_panel ? 0.53 : k.group > 2 ? 0.5 : 0.8;  // words take a multiplication and a sum
  return vectors * (9.0 * groups * (product * pixels + gathering) + 6.0 * pixels);
}

std::size_t weight_bytes(const Int8Plan& plan, int in_count, int vectors) {
  const Int8Kernels& k = *plan.kernels;
  const int inputs = plan.image_rows ? plan.inputs : std::min(in_count, plan.inputs);
  return static_cast<std::size_t>(vectors) * static_cast<std::size_t>(plan.taps) *
         static_cast<std::size_t>((inputs + k.group - 1) / k.group) * static_cast<std::size_t>(std::max(4, k.group) * k.lanes);
}

bool few_users(const Int8Plan& plan) { return plan.shape.output.width * plan.shape.output.height <= plan.tuning.int8_few_pixels; }

void lay_out(const Int8Plan& plan, int in_count, int, int threads, Int8Room& room, Int8Scratch& lay) {
  const std::size_t bytes = static_cast<std::size_t>(pixel_bytes(plan.shape.in_channels, in_count));
  lay_out_rows(plan, threads, plan.kernels->group == 2, 2 * bytes, room, lay);
  const std::size_t pixels = static_cast<std::size_t>(lay.unit_rows) * static_cast<std::size_t>(plan.shape.output.width);
  const std::size_t sums = 4 * static_cast<std::size_t>(lay.vectors) * static_cast<std::size_t>(plan.kernels->lanes);
  lay.products = room.take(lay.streamed > 0 ? pixels * sums : 0) - lay.thread;
}

int units(const Int8Run& run) { return gather_units(run, run.plan.kernels->group); }
void gather(const Int8Run& run, int unit, int member, std::uint8_t* to) {
  gather_unit(run, unit, member, run.plan.kernels->group, false, to);
}
void multiply(const Int8Run& run, int unit, int member) { run.plan.kernels->direct(run, unit, member); }

}  // namespace

const Int8Algorithm kInt8Direct = {{"int8 direct", Element::code8, "any shape"},
                                   fits,
                                   suits,
                                   cost,
                                   weight_bytes,
                                   lay_out,
                                   most_row_bytes,
                                   units,
                                   gather,
                                   multiply,
                                   false,
                                   few_users};

}  // namespace penstock
