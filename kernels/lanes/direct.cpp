// Running the algorithm with outputs in the lanes on maps of pixels: gathering weights, and products of panels.
#include <algorithm>
#include <cstring>

#include "lanes/run.h"

namespace penstock {

namespace {

void gather(const LanesRun& run, int panel, float* to) {
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
  return plan.in_lanes.blocks > 1 && task.threads > 1 && !lanes_all_active(plan, task.in_count, task.out_count);
}

// The weights of panel `number`, or the rows that they will be gathered from.
LanesFetch fetch_of(const LanesRun& run, int number, bool gathered) {
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

LanesArgs args_of(const LanesRun& run) {
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

void multiply(const LanesRun& run, int unit, float* thread) {
  const LanesPlan& l = run.plan.in_lanes;
  const int lanes = run.plan.kernels->lanes, count = lanes_panel_count(run.plan, run.task.out_count);
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
           (static_cast<std::ptrdiff_t>(block) * lanes_vector_count(run.plan, run.task.out_count) + panel.vector) * lanes;
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
void add_sums(const LanesRun& run) {
  const int lanes = run.plan.kernels->lanes, vectors = lanes_vector_count(run.plan, run.task.out_count);
  const LanesPanel* const panels = run.panels();
  for (int j = 0; j < lanes_panel_count(run.plan, run.task.out_count); ++j)
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
  const LanesScratch some = lanes_scratch(plan, most_in, most_out);
  // Fewer channels than all have their weights gathered.
  const LanesScratch fewer = most_in > 1 ? lanes_scratch(plan, most_in - 1, most_out) : some;
  const LanesScratch fewest = most_out > 1 ? lanes_scratch(plan, most_in, most_out - 1) : some;
  return {std::max({some.total, fewer.total, fewest.total}), std::max({some.thread, fewer.thread, fewest.thread}), 0};
}

int stages(const ConvPlan& plan, const ConvTask& task) { return 2 + (gathers_first(plan, task) ? 1 : 0) + (task.sums ? 1 : 0); }

int units(const ConvPlan& plan, const ConvTask& task, int stage) {
  const bool gathers = gathers_first(plan, task);
  if (stage == 0) return 1;
  if (gathers && stage == 1) return lanes_panel_count(plan, task.out_count);
  if (stage == (gathers ? 2 : 1)) return lanes_panel_count(plan, task.out_count) * plan.in_lanes.blocks;
  return 1;
}

bool fetches_later(const ConvPlan&) { return true; }

void run_lanes(const ConvPlan& plan, const ConvTask& task, int stage, int unit_begin, int unit_end, const ConvScratch& scratch) {
  const LanesRun run(plan, task, scratch.shared);
  const bool gathers = gathers_first(plan, task);
  if (stage == 0) return prepare_lanes(run);
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
