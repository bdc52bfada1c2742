// What the stages of the direct convolution on maps of pixels share: where a task's lists and weights lie, and how they are set up.
#pragma once
#include "conv/plan.h"
#include "lanes/lanes.h"
#include "lanes/panels.h"

namespace penstock {

// The panels of all groups together.
inline int lanes_panel_count(const ConvPlan& plan, int out_count) {
  const LanesPlan& l = plan.in_lanes;
  return l.groups == 1 ? panels_of(vectors_of(plan, out_count)) : l.groups * l.panels;
}
inline int lanes_vector_count(const ConvPlan& plan, int out_count) {
  const LanesPlan& l = plan.in_lanes;
  return l.groups == 1 ? vectors_of(plan, out_count) : l.groups * l.vectors;
}

inline bool lanes_all_active(const ConvPlan& plan, int in_count, int out_count) {
  return in_count == plan.shape.in_channels && out_count == plan.shape.out_channels;
}

// Where things lie in the shared scratch, in floats.
struct LanesScratch {
  std::size_t panels, gain, offset, taps, first_piece, pieces, places, sums, weights, total;
  std::size_t thread;  // weights of one panel
};

LanesScratch lanes_scratch(const ConvPlan& plan, int in_count, int out_count);

// What a task's stages share.
struct LanesRun {
  const ConvPlan& plan;
  const ConvTask& task;
  LanesScratch lay;
  float* scratch;
  bool dense;

  LanesRun(const ConvPlan& plan, const ConvTask& task, float* scratch)
      : plan(plan),
        task(task),
        lay(lanes_scratch(plan, task.in_count, task.out_count)),
        scratch(scratch),
        dense(lanes_all_active(plan, task.in_count, task.out_count)) {}

  template <typename T>
  T* at(std::size_t floats) const {
    return reinterpret_cast<T*>(scratch + floats);
  }
  LanesPanel* panels() const { return at<LanesPanel>(lay.panels); }
  // The plan's weights where all channels are active, else those gathered for this image.
  const float* weights() const { return dense ? plan.in_lanes.weights.data() : at<float>(lay.weights); }
};

// The panels, what is added to them and multiplied with, and where each row of weights comes from and goes to.
void prepare_lanes(const LanesRun& run);

}  // namespace penstock
