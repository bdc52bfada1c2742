// Setting up a task of the direct convolution on maps of pixels: its scratch, panels, and where each row of weights comes from.
#include <algorithm>
#include <cstring>

#include "lanes/run.h"

namespace penstock {

namespace {

std::size_t floats_of(std::size_t bytes) { return (bytes + 63) / 64 * 16; }

// Calls f with where each group's active inputs begin and end in the list.
template <typename F>
void each_group(const LanesRun& run, F f) {
  const LanesPlan& l = run.plan.in_lanes;
  for (int g = 0, i = 0; g < l.groups; ++g) {
    const int first = i;
    while (i < run.task.in_count && run.task.in_list[i] < (g + 1) * l.in_group) ++i;
    f(g, first, i);
  }
}

// Rows of weights are [tap][input] in each group; of planes [input][tap].
void set_taps(const LanesRun& run) {
  const ConvShape& s = run.plan.shape;
  const std::vector<std::ptrdiff_t>& taps = run.plan.in_lanes.taps;
  std::ptrdiff_t* to = run.at<std::ptrdiff_t>(run.lay.taps);
  if (s.in_layout == Layout::planes) {
    for (int p = 0; p < run.task.in_count; ++p)
      for (std::ptrdiff_t tap : taps) *to++ = p * s.input.stride() + tap;
  } else {
    const std::ptrdiff_t pixel = pixel_floats(run.task.in_count);
    each_group(run, [&](int, int first, int end) {
      for (std::ptrdiff_t tap : taps)
        for (int i = 0; i < end - first; ++i) *to++ = tap * pixel + i;
    });
  }
}

void set_panels(const LanesRun& run) {
  const LanesPlan& l = run.plan.in_lanes;
  const ConvTask& task = run.task;
  const int lanes = run.plan.kernels->lanes, all = lanes_panel_count(run.plan, task.out_count) / l.groups;
  LanesPanel* panel = run.panels();
  std::int64_t floats = 0;
  int i = 0, o = 0;
  for (int g = 0; g < l.groups; ++g) {
    const int in_first = i, out_first = o;
    while (i < task.in_count && task.in_list[i] < (g + 1) * l.in_group) ++i;
    while (o < task.out_count && task.out_list[o] < (g + 1) * l.out_group) ++o;
    const int outs = o - out_first, vectors = vectors_of(run.plan, outs);
    for (int j = 0; j < all; ++j, ++panel) {
      panel->vectors = outs > 0 && j < panels_of(vectors) ? panel_vectors(vectors, j) : 0;
      panel->first = out_first + 2 * j * lanes;
      panel->outs = std::max(0, std::min(outs - 2 * j * lanes, panel->vectors * lanes));
      panel->in_first = in_first;
      panel->in_count = i - in_first;
      panel->in_base = g * l.in_group;
      panel->vector = g * l.vectors + 2 * j;
      panel->weights = floats;
      std::int32_t step;
      if (run.dense && panel->vectors > 0) find_vector(run.plan, g, 2 * j, panel->weights, step);
      floats +=
          static_cast<std::int64_t>(panel->vectors) * lanes * (panel->in_count * static_cast<std::int64_t>(l.taps.size()) + 1);
    }
  }
}

void set_ends(const LanesRun& run) {
  const ConvTask& task = run.task;
  const int lanes = run.plan.kernels->lanes;
  const std::size_t floats = static_cast<std::size_t>(lanes_vector_count(run.plan, task.out_count) * lanes);
  float *const gain = run.at<float>(run.lay.gain), *const offset = run.at<float>(run.lay.offset);
  std::memset(gain, 0, 4 * floats);
  std::memset(offset, 0, 4 * floats);
  const float* const bias = task.bias ? task.bias : run.plan.bias.data();
  const LanesPanel* const panels = run.panels();
  for (int j = 0; j < lanes_panel_count(run.plan, task.out_count); ++j)
    for (int o = 0; o < panels[j].outs; ++o) {
      const int p = panels[j].first + o, at = panels[j].vector * lanes + o;
      gain[at] = task.gain ? task.gain[p] : 1.0f;
      offset[at] = gain[at] * bias[task.out_list[p]];
    }
}

void set_pieces(const LanesRun& run) {
  const ConvPlan& plan = run.plan;
  const LanesPlan& l = plan.in_lanes;
  const int lanes = plan.kernels->lanes, span = lanes_kernels(plan.machine.isa).pick_span / lanes;  // vectors that one pick reaches
  std::int32_t* const first = run.at<std::int32_t>(run.lay.first_piece);
  LanesPiece* const pieces = run.at<LanesPiece>(run.lay.pieces);
  const int vectors = lanes_vector_count(plan, run.task.out_count);
  for (int v = 0; v <= vectors; ++v) first[v] = -1;
  int count = 0;
  const LanesPanel* const panels = run.panels();
  for (int j = 0; j < lanes_panel_count(plan, run.task.out_count); ++j) {
    const int group = panels[j].in_base / l.in_group;
    for (int v = 0; v < panels[j].vectors; ++v) {
      first[panels[j].vector + v] = count;
      int last = -1;
      for (int o = v * lanes; o < std::min(panels[j].outs, (v + 1) * lanes); ++o) {
        const int channel = run.task.out_list[panels[j].first + o] - group * l.out_group;
        const int source = channel / lanes, panel = std::min(source / 2, l.panels - 1);
        const int begin = 2 * panel + (source - 2 * panel) / span * span;  // vector that the pick begins at
        if (begin != last) {
          LanesPiece& piece = pieces[count++];
          find_vector(plan, group, begin, piece.from, piece.step);
          std::fill(piece.places, piece.places + 16, -1);
          last = begin;
        }
        pieces[count - 1].places[o - v * lanes] = channel - begin * lanes;
      }
    }
  }
  first[vectors] = count;
  for (int v = vectors - 1; v >= 0; --v)
    if (first[v] < 0) first[v] = first[v + 1];
}

void set_places(const LanesRun& run) {
  const LanesPlan& l = run.plan.in_lanes;
  const ConvTask& task = run.task;
  const int taps = static_cast<int>(l.taps.size());
  std::int32_t* to = run.at<std::int32_t>(run.lay.places);
  each_group(run, [&](int g, int first, int end) {
    const int count = end - first;
    std::fill(to, to + l.in_group * taps, taps * count);
    for (int p = first; p < end; ++p)
      for (int tap = 0; tap < taps; ++tap) to[(task.in_list[p] - g * l.in_group) * taps + tap] = tap * count + p - first;
    to += l.in_group * taps;
  });
}

}  // namespace

LanesScratch lanes_scratch(const ConvPlan& plan, int in_count, int out_count) {
  const LanesPlan& l = plan.in_lanes;
  const std::size_t lanes = static_cast<std::size_t>(plan.kernels->lanes);
  const std::size_t vectors = static_cast<std::size_t>(lanes_vector_count(plan, out_count));
  const std::size_t inputs = static_cast<std::size_t>(std::min(in_count, l.in_group));
  const std::size_t taps = l.taps.size();
  LanesScratch lay{};
  std::size_t at = 0;
  const auto take = [&at](std::size_t bytes) {
    const std::size_t here = at;
    at += floats_of(bytes);
    return here;
  };
  lay.panels = take(sizeof(LanesPanel) * static_cast<std::size_t>(lanes_panel_count(plan, out_count)));
  lay.gain = take(4 * vectors * lanes);
  lay.offset = take(4 * vectors * lanes);
  lay.taps = take(sizeof(std::ptrdiff_t) * taps * static_cast<std::size_t>(in_count));
  lay.sums = take(4 * vectors * lanes * static_cast<std::size_t>(l.blocks));
  if (!lanes_all_active(plan, in_count, out_count)) {
    // A piece of the plan's weights adds to the vectors that it begins and to one that it goes on in.
    const std::size_t spans = static_cast<std::size_t>(l.groups) * (static_cast<std::size_t>(l.vectors) * lanes / 8 + 1);
    lay.first_piece = take(4 * (vectors + 1));
    lay.pieces = take(sizeof(LanesPiece) * (spans + vectors));
    if (l.given) lay.places = take(4 * static_cast<std::size_t>(plan.shape.in_channels) * taps);
    // Weights of inputs that are not active go to a row after the others.
    const std::size_t rows = inputs * taps + 1;
    if (l.blocks > 1) lay.weights = take(4 * vectors * lanes * rows);
    else lay.thread = floats_of(4 * kLanesVectors * lanes * rows);
  }
  lay.total = at;
  return lay;
}

void prepare_lanes(const LanesRun& run) {
  set_taps(run);
  set_panels(run);
  set_ends(run);
  if (!run.dense && run.plan.in_lanes.given) set_places(run);
  else if (!run.dense) set_pieces(run);
  clear_pixel_padding(run.task.output, run.plan.shape.output, pixel_floats(run.task.out_count));
}

}  // namespace penstock
