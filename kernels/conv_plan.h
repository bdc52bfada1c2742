// What planning leaves behind for one layer. Private to the convolution's own files.
#pragma once
#include <vector>

#include "conv.h"
#include "conv_kernels.h"

namespace penstock {

struct DirectPlan {
  std::vector<float> weights;  // [out][in / groups][tap], as given
  std::vector<std::ptrdiff_t> taps;
  std::vector<float> mask;
  std::vector<ConvPhase> phases;  // empty when the stride is 1 and planes are read as they are
  std::ptrdiff_t cut_stride = 0;
  int pitch = 0;
  int tap_rows = 0;
  bool flat = false;
  int block_rows = 1;
  std::size_t shared_floats = 0;
};

struct ConvPlan {
  ConvShape shape;
  const ConvKernels* kernels = nullptr;
  std::vector<float> bias;
  float low = 0, high = 0;
  int curve = -1;
  DirectPlan direct;
};

ConvOutput conv_output(const ConvPlan& plan, const ConvTask& task);

void plan_direct(ConvPlan& plan, const float* weights);
int direct_stages(const ConvPlan& plan);
int direct_units(const ConvPlan& plan, const ConvTask& task, int stage);
void run_direct(const ConvPlan& plan, const ConvTask& task, int stage, int unit_begin, int unit_end,
                const ConvScratch& scratch);

}  // namespace penstock
