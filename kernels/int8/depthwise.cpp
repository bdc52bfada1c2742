// Depthwise layers of codes, with channels in the lanes: a vector holds channels of several groups. The kernels are depthwise.inl.
#include "int8/kernels.h"

namespace penstock {
namespace {

bool suits(const Int8Plan&) { return true; }
double cost(const Int8Plan&, int, int) { return 0.0; }  // nothing else suits these layers

std::size_t weight_bytes(const Int8Plan& plan, int, int vectors) {
  return static_cast<std::size_t>(vectors) * static_cast<std::size_t>((plan.taps + 1) / 2) *
         static_cast<std::size_t>(4 * plan.kernels->lanes);
}

void lay_out(const Int8Plan& plan, int, int out_count, int threads, Int8Room& room, Int8Scratch& lay) {
  lay_out_rows(plan, threads, true, static_cast<std::size_t>(pixel_bytes(plan.shape.out_channels, out_count)), room, lay);
}

int one_unit(const Int8Run&) { return 1; }
void gather(const Int8Run& run, int, int, std::uint8_t* to) { run.plan.kernels->gather_depthwise(run, to); }
void multiply(const Int8Run& run, int unit, int member) { run.plan.kernels->depthwise(run, unit, member); }

}  // namespace

const Int8Algorithm kInt8Depthwise = {{"int8 depthwise", Element::code8, "one input and one output in each group"},
                                      is_depthwise,
                                      suits,
                                      cost,
                                      weight_bytes,
                                      lay_out,
                                      most_row_bytes,
                                      one_unit,
                                      gather,
                                      multiply,
                                      true};

}  // namespace penstock
