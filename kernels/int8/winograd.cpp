// Winograd's F(4x4, 3x3) on codes, exact in whole numbers (docs/int8.md). The kernels are winograd.inl and filters.inl.
#include <algorithm>
#include <cmath>

#include "int8/kernels.h"

namespace penstock {
namespace {

constexpr std::int64_t kSumBound = std::int64_t{1} << 25;  // docs/int8.md

bool fits(const Int8Plan& plan) {
  const Int8Shape& s = plan.shape;
  return s.kernel_h == 3 && s.kernel_w == 3 && s.stride_h == 1 && s.stride_w == 1 && s.dilation_h == 1 && s.dilation_w == 1 &&
         s.groups == 1 && s.in_channels > kImageChannels && plan.sum_bound < kSumBound;
}
bool suits(const Int8Plan&) { return true; }

int tiles_of(const Int8Plan& plan) { return (plan.shape.output.width + 3) / 4 * ((plan.shape.output.height + 3) / 4); }
int padded_words(const Int8Kernels& k, int in_count) { return (in_count + 2 * k.lanes - 1) / (2 * k.lanes) * 2 * k.lanes; }

std::size_t weight_bytes(const Int8Plan& plan, int in_count, int vectors) {
  const int pairs = (std::min(in_count, plan.inputs) + 1) / 2;
  return static_cast<std::size_t>(filter_bytes(pairs, vectors, plan.kernels->lanes, plan.kernels->most_vectors));
}

// Whether the filters of these channels are too many to stay in L2 from unit to unit.
bool filters_leave(const Int8Plan& plan, int in_count, int out_count) {
  const int lanes = plan.kernels->lanes;
  return weight_bytes(plan, in_count, (out_count + lanes - 1) / lanes) > plan.tuning.int8_panel_bytes;
}

// How many tiles are transformed and multiplied together: fewer where the filters stay in L2, so that the tiles stay there as well.
int unit_tiles(const Int8Plan& plan, int in_count, int out_count, int threads) {
  const Int8Kernels& k = *plan.kernels;
  const std::size_t bytes =
      filters_leave(plan, in_count, out_count) ? plan.tuning.int8_winograd_far_bytes : plan.tuning.int8_winograd_bytes;
  const int tiles = tiles_of(plan);
  const std::size_t tile =
      72 * static_cast<std::size_t>(padded_words(k, in_count)) + 36 * 4 * static_cast<std::size_t>(k.lanes * k.most_vectors);
  int most = static_cast<int>(std::clamp<std::size_t>(bytes / tile, 12, 1 << 16));
  if (threads > 1) most = std::min(most, std::max(4, (tiles + 2 * threads - 1) / (2 * threads)));
  const int units = (tiles + most - 1) / most;
  return (tiles + units - 1) / units;
}

// Cycles of a task, roughly, to be compared with those of the direct algorithm.
double cost(const Int8Plan& plan, int in_count, int out_count) {
  if (std::min(in_count, out_count) < plan.tuning.int8_winograd_channels) return kNever;
  const Int8Kernels& k = *plan.kernels;
  const double vectors = (out_count + k.lanes - 1) / k.lanes, pairs = (in_count + 1) / 2;
  const double panels = (out_count + k.lanes * k.most_vectors - 1) / (k.lanes * k.most_vectors);
  const double tiles = tiles_of(plan);
  const double units = std::ceil(tiles / unit_tiles(plan, in_count, out_count, 1));
  const bool permutes = k.gather_panel != nullptr;
  const Tuning& t = plan.tuning;
  const double begun = permutes ? t.int8_transform_share : 1.0;
  const double multiply = vectors * tiles * 36.0 * pairs * (permutes ? 0.52 : 0.55) + begun * 36.0 * panels * tiles / 6.0 * 40.0;
  const double transforms = begun * tiles * (150.0 * std::ceil(in_count / (2.0 * k.lanes)) + 230.0 * vectors);
  const Int8Weights weights = weights_of(plan, &kInt8Winograd, in_count, out_count, 1);
  const double made = weights == Int8Weights::packed ? 0.0 : weights == Int8Weights::by_panel ? units : 1.0;
  const double near_filter = k.permutes_bytes ? t.int8_filter_cycles : 220.0;
  const double far_filter = k.permutes_bytes ? t.int8_far_filter_cycles : 600.0;
  const double filters = made * pairs * vectors * (!permutes ? 90.0 : has_far_filters(plan) ? far_filter : near_filter);
  if (weights == Int8Weights::by_panel) return multiply + transforms + filters;
  // Every unit reads all transformed filters: at 48 bytes a cycle if they fit in L2, at 10 (or as tuned where weights are permuted) if not.
  const double near = static_cast<double>(t.int8_near_bytes);
  const double bytes = 36.0 * pairs * vectors * 4.0 * k.lanes;
  const double reading = units * (std::min(bytes, near) / 48.0 + std::max(0.0, bytes - near) / (permutes ? t.int8_far_rate : 10.0));
  return multiply + transforms + filters + reading;
}

// Every unit transforms all filters again, so this pays only with few units: writing filters that do not fit in L2 and reading them
// back takes as long as transforming them twice.
bool by_panels(const Int8Plan& plan, int in_count, int out_count, bool packed) {
  const int most = packed ? 1 : plan.tuning.int8_panel_units;
  return filters_leave(plan, in_count, out_count) && tiles_of(plan) <= most * unit_tiles(plan, in_count, out_count, 1);
}

bool few_users(const Int8Plan& plan) { return tiles_of(plan) <= plan.tuning.int8_few_tiles; }

void lay_out(const Int8Plan& plan, int in_count, int out_count, int threads, Int8Room& room, Int8Scratch& lay) {
  const Int8Kernels& k = *plan.kernels;
  const std::size_t words = static_cast<std::size_t>(padded_words(k, in_count));
  lay.unit_rows = lay.streamed > 0 ? tiles_of(plan) : unit_tiles(plan, in_count, out_count, threads);
  lay.row_units = (tiles_of(plan) + lay.unit_rows - 1) / lay.unit_rows;
  lay.panel_units = 1;
  lay.position = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(lay.unit_rows) * words) + 2 * k.lanes;
  lay.transformed = room.take(36 * 2 * static_cast<std::size_t>(lay.position)) - lay.thread;
  // The products of one panel of outputs, or of all outputs.
  const int vectors = lay.streamed > 0 ? lay.vectors + lay.vectors % k.most_vectors : k.most_vectors;
  lay.products = room.take(36 * 4 * static_cast<std::size_t>((lay.unit_rows + 1) * vectors * k.lanes)) - lay.thread;
}

std::size_t most_thread_bytes(const Int8Plan& plan, const Int8Scratch& lay) {
  return std::max(lay.thread_size,
                  lay.transformed + std::max(plan.tuning.int8_winograd_bytes, plan.tuning.int8_winograd_far_bytes) +
                      36 * 4 * static_cast<std::size_t>(plan.kernels->lanes * (plan.kernels->most_vectors + 1)) + 128);
}

int units(const Int8Run& run) { return gather_units(run, 2); }
void gather(const Int8Run& run, int unit, int member, std::uint8_t* to) { gather_unit(run, unit, member, 2, true, to); }
void multiply(const Int8Run& run, int unit, int member) { run.plan.kernels->winograd(run, unit, member); }

}  // namespace

const Int8Algorithm kInt8Winograd = {
    {"int8 winograd", Element::code8, "a 3x3 kernel with stride 1, dilation 1 and one group, and sums below 2^25"},
    fits,
    suits,
    cost,
    weight_bytes,
    lay_out,
    most_thread_bytes,
    units,
    gather,
    multiply,
    false,
    few_users,
    by_panels};

}  // namespace penstock
