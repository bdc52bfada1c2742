// Planning and running the algorithm with outputs in the lanes on maps of pixels: panels of outputs, groups, gathered weights.
#include <algorithm>
#include <cstring>

#include "conv/plan.h"
#include "lanes/lanes.h"
#include "lanes/panels.h"

namespace penstock {

namespace {

// The panels of all groups together.
int panel_count(const ConvPlan& plan, int out_count) {
  const LanesPlan& l = plan.in_lanes;
  return l.groups == 1 ? panels_of(vectors_of(plan, out_count)) : l.groups * l.panels;
}
int vector_count(const ConvPlan& plan, int out_count) {
  const LanesPlan& l = plan.in_lanes;
  return l.groups == 1 ? vectors_of(plan, out_count) : l.groups * l.vectors;
}

bool all_active(const ConvPlan& plan, int in_count, int out_count) {
  return in_count == plan.shape.in_channels && out_count == plan.shape.out_channels;
}

// Where things lie in the shared scratch, in floats.
struct Scratch {
  std::size_t panels, gain, offset, taps, first_piece, pieces, places, sums, weights, total;
  std::size_t thread;  // weights of one panel
};

std::size_t floats_of(std::size_t bytes) { return (bytes + 63) / 64 * 16; }

Scratch lay_out(const ConvPlan& plan, int in_count, int out_count) {
  const LanesPlan& l = plan.in_lanes;
  const std::size_t lanes = static_cast<std::size_t>(plan.kernels->lanes);
  const std::size_t vectors = static_cast<std::size_t>(vector_count(plan, out_count));
  const std::size_t inputs = static_cast<std::size_t>(std::min(in_count, l.in_group));
  const std::size_t taps = l.taps.size();
  Scratch lay{};
  std::size_t at = 0;
  const auto take = [&at](std::size_t bytes) {
    const std::size_t here = at;
    at += floats_of(bytes);
    return here;
  };
  lay.panels = take(sizeof(LanesPanel) * static_cast<std::size_t>(panel_count(plan, out_count)));
  lay.gain = take(4 * vectors * lanes);
  lay.offset = take(4 * vectors * lanes);
  lay.taps = take(sizeof(std::ptrdiff_t) * taps * static_cast<std::size_t>(in_count));
  lay.sums = take(4 * vectors * lanes * static_cast<std::size_t>(l.blocks));
  if (!all_active(plan, in_count, out_count)) {
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

// What a task's stages share.
struct Run {
  const ConvPlan& plan;
  const ConvTask& task;
  Scratch lay;
  float* scratch;
  bool dense;

  Run(const ConvPlan& plan, const ConvTask& task, float* scratch)
      : plan(plan),
        task(task),
        lay(lay_out(plan, task.in_count, task.out_count)),
        scratch(scratch),
        dense(all_active(plan, task.in_count, task.out_count)) {}

  template <typename T>
  T* at(std::size_t floats) const {
    return reinterpret_cast<T*>(scratch + floats);
  }
  LanesPanel* panels() const { return at<LanesPanel>(lay.panels); }
  // The plan's weights where all channels are active, else those gathered for this image.
  const float* weights() const { return dense ? plan.in_lanes.weights.data() : at<float>(lay.weights); }
};

// Calls f with where each group's active inputs begin and end in the list.
template <typename F>
void each_group(const Run& run, F f) {
  const LanesPlan& l = run.plan.in_lanes;
  for (int g = 0, i = 0; g < l.groups; ++g) {
    const int first = i;
    while (i < run.task.in_count && run.task.in_list[i] < (g + 1) * l.in_group) ++i;
    f(g, first, i);
  }
}

// Rows of weights are [tap][input] in each group; of planes [input][tap].
void set_taps(const Run& run) {
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

void set_panels(const Run& run) {
  const LanesPlan& l = run.plan.in_lanes;
  const ConvTask& task = run.task;
  const int lanes = run.plan.kernels->lanes, all = panel_count(run.plan, task.out_count) / l.groups;
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

void set_ends(const Run& run) {
  const ConvTask& task = run.task;
  const int lanes = run.plan.kernels->lanes;
  const std::size_t floats = static_cast<std::size_t>(vector_count(run.plan, task.out_count) * lanes);
  float *const gain = run.at<float>(run.lay.gain), *const offset = run.at<float>(run.lay.offset);
  std::memset(gain, 0, 4 * floats);
  std::memset(offset, 0, 4 * floats);
  const float* const bias = task.bias ? task.bias : run.plan.bias.data();
  const LanesPanel* const panels = run.panels();
  for (int j = 0; j < panel_count(run.plan, task.out_count); ++j)
    for (int o = 0; o < panels[j].outs; ++o) {
      const int p = panels[j].first + o, at = panels[j].vector * lanes + o;
      gain[at] = task.gain ? task.gain[p] : 1.0f;
      offset[at] = gain[at] * bias[task.out_list[p]];
    }
}

void set_pieces(const Run& run) {
  const ConvPlan& plan = run.plan;
  const LanesPlan& l = plan.in_lanes;
  const int lanes = plan.kernels->lanes, span = lanes_kernels(plan.machine.isa).pick_span / lanes;  // vectors that one pick reaches
  std::int32_t* const first = run.at<std::int32_t>(run.lay.first_piece);
  LanesPiece* const pieces = run.at<LanesPiece>(run.lay.pieces);
  const int vectors = vector_count(plan, run.task.out_count);
  for (int v = 0; v <= vectors; ++v) first[v] = -1;
  int count = 0;
  const LanesPanel* const panels = run.panels();
  for (int j = 0; j < panel_count(plan, run.task.out_count); ++j) {
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

void set_places(const Run& run) {
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

void prepare(const Run& run) {
  set_taps(run);
  set_panels(run);
  set_ends(run);
  if (!run.dense && run.plan.in_lanes.given) set_places(run);
  else if (!run.dense) set_pieces(run);
  clear_pixel_padding(run.task.output, run.plan.shape.output, pixel_floats(run.task.out_count));
}

void gather(const Run& run, int panel, float* to) {
  const ConvPlan& plan = run.plan;
  const LanesPlan& l = plan.in_lanes;
  if (l.given) {
    const int taps = static_cast<int>(l.taps.size()), columns = l.in_group * taps;
    const LanesTurn turn = {l.given, columns, columns, taps, run.task.out_list, run.at<std::int32_t>(run.lay.places)};
    return lanes_kernels(plan.machine.isa).turn(turn, run.panels()[panel], to);
  }
  const LanesGather args = {plan.in_lanes.weights.data(),
                            run.at<LanesPiece>(run.lay.pieces),
                            run.at<std::int32_t>(run.lay.first_piece),
                            run.task.in_list,
                            static_cast<int>(plan.in_lanes.taps.size()),
                            plan.in_lanes.in_group,
                            plan.shape.in_layout == Layout::planes};
  lanes_kernels(plan.machine.isa).gather(args, run.panels()[panel], to);
}

// With one thread, each panel's weights are gathered just before its first use, while those of the next are fetched; a sum begins with
// the last block of pixels (run/walk_sums.cpp). Otherwise a stage of its own gathers them all for the threads to share.
int first_block(const ConvPlan& plan) { return plan.shape.adds ? plan.in_lanes.blocks - 1 : 0; }
int last_block(const ConvPlan& plan) { return plan.shape.adds ? 0 : plan.in_lanes.blocks - 1; }
bool gathers_first(const ConvPlan& plan, const ConvTask& task) {
  return plan.in_lanes.blocks > 1 && task.threads > 1 && !all_active(plan, task.in_count, task.out_count);
}

// The weights of panel `number`, or the rows that they will be gathered from.
LanesFetch fetch_of(const Run& run, int number, bool gathered) {
  const LanesPlan& l = run.plan.in_lanes;
  const LanesPanel& panel = run.panels()[number];
  const int lanes = run.plan.kernels->lanes, taps = static_cast<int>(l.taps.size());
  LanesFetch next{};
  if (gathered) {
    next.from = run.weights() + panel.weights;
    next.rows = static_cast<int>(std::int64_t{panel.vectors} * lanes * panel.in_count * taps / 16);
  } else if (l.given) {
    next.from = l.given;
    next.list = run.task.out_list + panel.first;
    next.rows = panel.outs;
    next.run_step = static_cast<std::ptrdiff_t>(l.in_group) * taps;
    next.run_lines = (l.in_group * taps + 15) / 16;
  } else if (run.plan.shape.in_layout != Layout::planes) {
    const std::int32_t* const first = run.at<std::int32_t>(run.lay.first_piece) + panel.vector;
    next.from = l.weights.data();
    next.pieces = run.at<LanesPiece>(run.lay.pieces) + first[0];
    next.piece_count = first[panel.vectors] - first[0];
    next.list = run.task.in_list + panel.in_first;
    next.rows = panel.in_count;
    next.taps = taps;
    next.tap_rows = l.in_group;
    next.in_base = panel.in_base;
  }
  return next;
}

LanesArgs args_of(const Run& run) {
  const ConvShape& s = run.plan.shape;
  const ConvTask& task = run.task;
  const bool planes = s.in_layout == Layout::planes;
  const std::ptrdiff_t pixel = planes ? 1 : pixel_floats(task.in_count);
  LanesArgs a{};
  a.input = task.input;
  a.step = s.stride_w * pixel;
  a.row = static_cast<std::ptrdiff_t>(s.stride_h) * s.input.pitch() * pixel;
  a.places = run.at<std::ptrdiff_t>(run.lay.taps);
  a.taps = static_cast<int>(run.plan.in_lanes.taps.size());
  a.planes = planes;
  a.flat = run.plan.in_lanes.flat;
  a.whole = run.plan.in_lanes.groups == 1;
  a.fetch_rows = run.plan.in_lanes.groups > 1 && !planes;
  a.out = lanes_output(run.plan, task, run.at<float>(run.lay.gain), run.at<float>(run.lay.offset));
  return a;
}

void multiply(const Run& run, int unit, float* thread) {
  const LanesPlan& l = run.plan.in_lanes;
  const int lanes = run.plan.kernels->lanes, count = panel_count(run.plan, run.task.out_count);
  const int block = unit / count, number = unit % count;
  const LanesPanel& panel = run.panels()[number];
  if (panel.vectors == 0) return;
  const float* weights = run.weights() + panel.weights;
  const bool first = block == first_block(run.plan), gathers = !run.dense && !gathers_first(run.plan, run.task);
  if (gathers && l.blocks == 1) {
    gather(run, number, thread);
    weights = thread;
  } else if (gathers && first) {
    gather(run, number, run.at<float>(run.lay.weights) + panel.weights);
  }
  const Planes& out = run.plan.shape.output;
  const std::int64_t pieces = l.flat ? static_cast<std::int64_t>(out.height) * out.width : out.height;
  float* sums = nullptr;
  if (run.task.sums) {
    sums = run.at<float>(run.lay.sums) +
           (static_cast<std::ptrdiff_t>(block) * vector_count(run.plan, run.task.out_count) + panel.vector) * lanes;
    std::memset(sums, 0, sizeof(float) * static_cast<std::size_t>(panel.vectors * lanes));
  }
  LanesArgs args = args_of(run);
  // From the second block of pixels on, weights that fit L2 are there already.
  const bool last = number + 1 == count;
  if (first && !last) args.next = fetch_of(run, number + 1, !gathers);
  else if (weights_are_far(run.plan) && !(last && block == last_block(run.plan)))
    args.next = fetch_of(run, (number + 1) % count, true);
  args.later = later_rows(run.task, unit, count * l.blocks);
  lanes_kernels(run.plan.machine.isa)
      .multiply(args, panel, weights, static_cast<int>(pieces * block / l.blocks),
                static_cast<int>(pieces * (block + 1) / l.blocks), sums);
}

// The sums of all blocks, block by block.
void add_sums(const Run& run) {
  const int lanes = run.plan.kernels->lanes, vectors = vector_count(run.plan, run.task.out_count);
  const LanesPanel* const panels = run.panels();
  for (int j = 0; j < panel_count(run.plan, run.task.out_count); ++j)
    for (int o = 0; o < panels[j].outs; ++o) {
      const float* from = run.at<float>(run.lay.sums) + panels[j].vector * lanes + o;
      float sum = 0.0f;
      for (int b = 0; b < run.plan.in_lanes.blocks; ++b) sum += from[static_cast<std::ptrdiff_t>(b) * vectors * lanes];
      run.task.sums[panels[j].first + o] = sum;
    }
}

bool fits(const ConvShape& s) { return !conv_needs_no_halo(s); }
bool suits(const ConvPlan&) { return true; }
double cost(const ConvPlan&, int, int) { return 1; }

ConvScratchFloats scratch_of(const ConvPlan& plan, int most_in, int most_out) {
  const Scratch some = lay_out(plan, most_in, most_out);
  // Fewer channels than all have their weights gathered.
  const Scratch fewer = most_in > 1 ? lay_out(plan, most_in - 1, most_out) : some;
  const Scratch fewest = most_out > 1 ? lay_out(plan, most_in, most_out - 1) : some;
  return {std::max({some.total, fewer.total, fewest.total}), std::max({some.thread, fewer.thread, fewest.thread}), 0};
}

int stages(const ConvPlan& plan, const ConvTask& task) { return 2 + (gathers_first(plan, task) ? 1 : 0) + (task.sums ? 1 : 0); }

int units(const ConvPlan& plan, const ConvTask& task, int stage) {
  const bool gathers = gathers_first(plan, task);
  if (stage == 0) return 1;
  if (gathers && stage == 1) return panel_count(plan, task.out_count);
  if (stage == (gathers ? 2 : 1)) return panel_count(plan, task.out_count) * plan.in_lanes.blocks;
  return 1;
}

bool fetches_later(const ConvPlan&) { return true; }

void run_lanes(const ConvPlan& plan, const ConvTask& task, int stage, int unit_begin, int unit_end, const ConvScratch& scratch) {
  const Run run(plan, task, scratch.shared);
  const bool gathers = gathers_first(plan, task);
  if (stage == 0) return prepare(run);
  if (gathers && stage == 1) {
    for (int panel = unit_begin; panel < unit_end; ++panel)
      if (run.panels()[panel].vectors > 0) gather(run, panel, run.at<float>(run.lay.weights) + run.panels()[panel].weights);
    return;
  }
  if (stage == (gathers ? 2 : 1)) {
    for (int unit = unit_begin; unit < unit_end; ++unit) multiply(run, unit, scratch.thread);
    return;
  }
  add_sums(run);
}

}  // namespace

// Maps of pixels; any shape but a depthwise one, which has an algorithm of its own.
const ConvAlgorithm kLanes = {{"lanes", Element::float32, "a result in pixels, and no depthwise shape"},
                              fits,
                              suits,
                              cost,
                              plan_lanes,
                              scratch_of,
                              stages,
                              units,
                              run_lanes,
                              nullptr,
                              fetches_later,
                              nullptr,
                              Layout::pixels};

}  // namespace penstock
