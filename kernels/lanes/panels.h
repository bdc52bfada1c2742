// How the direct convolution on maps of pixels cuts outputs into vectors and panels, and where the weights of each lie.
#pragma once
#include <algorithm>

#include "conv/plan.h"

namespace penstock {

// Panels that `vectors` vectors of outputs form: of 2 vectors, the last of up to 3.
inline int panels_of(int vectors) { return std::max(1, vectors / 2); }
inline int panel_vectors(int vectors, int panel) { return panel + 1 < panels_of(vectors) ? 2 : vectors - 2 * panel; }

inline int vectors_of(const ConvPlan& plan, int outs) { return (outs + plan.kernels->lanes - 1) / plan.kernels->lanes; }

// Offset of a group's vector `v` among the plan's weights, and the floats from one of its rows to the next.
inline void find_vector(const ConvPlan& plan, int group, int v, std::int64_t& from, std::int32_t& step) {
  const LanesPlan& l = plan.in_lanes;
  const int lanes = plan.kernels->lanes, panel = std::min(v / 2, l.panels - 1);
  const std::int64_t rows = static_cast<std::int64_t>(l.taps.size()) * l.in_group;
  step = panel_vectors(l.vectors, panel) * lanes;
  from = group * l.group_floats + 2 * panel * rows * lanes + (v - 2 * panel) * lanes;
}

// Puts the weights in order and chooses the blocks of pixels.
void plan_lanes(ConvPlan& plan, const float* weights);

}  // namespace penstock
