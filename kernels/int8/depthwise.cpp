// Depthwise layers of codes, with channels in the lanes: a vector holds channels of several groups. The kernels are depthwise.inl and,
// where a set multiplies four codes in a lane, depthwise_quads.inl.
#include <algorithm>

#include "int8/kernels.h"

namespace penstock {
namespace {

bool suits(const Int8Plan&) { return true; }
double cost(const Int8Plan&, int, int) { return 0.0; }  // nothing else suits these layers

std::size_t weight_bytes(const Int8Plan& plan, int, int vectors) {
  if (plan.kernels->depthwise_quads)
    return static_cast<std::size_t>((vectors + 3) / 4) * plan.depthwise.uses.size() * kDepthwiseBytes;
  return static_cast<std::size_t>(vectors) * static_cast<std::size_t>((plan.taps + 1) / 2) *
         static_cast<std::size_t>(4 * plan.kernels->lanes);
}

void lay_out(const Int8Plan& plan, int, int out_count, int threads, Int8Room& room, Int8Scratch& lay) {
  const std::size_t streams = plan.depthwise.streams.size();
  lay.columns = room.take(std::max(streams * static_cast<std::size_t>(plan.depthwise.span),
                                   streams == 0 ? std::size_t{0} : std::size_t{kDepthwiseColumns}) *
                          kDepthwiseBytes) -
                lay.thread;
  lay_out_rows(plan, threads, true, static_cast<std::size_t>(pixel_bytes(plan.shape.out_channels, out_count)), room, lay);
}

int one_unit(const Int8Run&) { return 1; }
void gather(const Int8Run& run, int, int, std::uint8_t* to) { run.plan.kernels->gather_depthwise(run, to); }
void multiply(const Int8Run& run, int unit, int member) { run.plan.kernels->depthwise(run, unit, member); }

}  // namespace

DepthwiseTaps plan_depthwise(const Int8Shape& s, const std::int8_t* weights) {
  DepthwiseTaps taps;
  std::vector<std::vector<int>> rows;  // of each use: its taps, of a kernel counted row by row
  const auto stream = [&](int row, int down, int across) {
    DepthwiseTaps::Stream made{};
    for (int r = 0; r < 4; ++r) {
      // Where a tap is missing its weight is 0, and any code of the map will do.
      made.row[r] = (row + (row + r * down < s.kernel_h ? r * down : 0)) * s.dilation_h;
      made.column[r] = (r * across < s.kernel_w ? r * across : 0) * s.dilation_w;
    }
    taps.streams.push_back(made);
  };
  // Taps of columns before `first` have been used.
  const auto use = [&](int row, int column, int down, int across, int first) {
    taps.uses.push_back({static_cast<int>(taps.streams.size()) - 1, column * s.dilation_w});
    std::vector<int> four;
    for (int r = 0; r < 4; ++r) {
      const int y = row + r * down, x = column + r * across;
      four.push_back(y < s.kernel_h && x >= first && x < s.kernel_w ? y * s.kernel_w + x : -1);
    }
    rows.push_back(four);
  };
  int row = 0;
  for (; s.kernel_h - row > 1; row += 4) {
    stream(row, 1, 0);
    for (int x = 0; x < s.kernel_w; ++x) use(row, x, 1, 0, x);
  }
  if (row < s.kernel_h) {
    stream(row, 0, 1);
    for (int x = 0; x < s.kernel_w; x += 4) {
      // Four columns may end three pixels behind the kernel, as far as a map may be read; else the last four begin sooner.
      const int behind = (x + 4 - s.kernel_w) * s.dilation_w;
      use(row, behind > 3 ? std::max(0, s.kernel_w - 4) : x, 0, 1, x);
    }
  }
  for (const DepthwiseTaps::Use& one : taps.uses) taps.span = std::max(taps.span, one.column + 1);
  const int area = s.kernel_h * s.kernel_w;
  for (int c = 0; c < s.out_channels; ++c)
    for (const std::vector<int>& four : rows)
      for (int tap : four) taps.weights.push_back(tap < 0 ? std::int8_t{0} : weights[c * area + tap]);
  return taps;
}

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
