// What a plan holds, how its scratch is laid out, and the kernels that every instruction set has (private to this folder).
#pragma once
#include <algorithm>
#include <limits>
#include <vector>

#include "conv/buffer.h"
#include "int8/conv.h"
#include "int8/maps.h"
#include "machine/machine.h"
#include "machine/prefetch.h"
#include "run/process.h"

namespace penstock {

// The active channels of one group, and where its gathered weights and vectors of outputs begin.
struct Int8Group {
  int in_begin, in_count;  // in the task's lists
  int out_begin, out_count;
  int vector;            // number of vectors of outputs in the groups before
  std::int64_t weights;  // bytes
};

// Vectors of outputs that are computed together: panel i of n has vectors [first(i), first(i + 1)).
struct Panels {
  int vectors, n;
  Panels(int count, int lanes, int most) : vectors((count + lanes - 1) / lanes), n((vectors + most - 1) / most) {}
  int first(int i) const { return static_cast<int>(static_cast<std::int64_t>(vectors) * i / n); }
};

// `count` items in pieces of `size` or one less.
struct Pieces {
  int n, size, large;
  Pieces(int count, int most) : n((count + most - 1) / most), size((count + n - 1) / n), large(count - n * (size - 1)) {}
  int at(int i) const { return i < large ? size : size - 1; }
};

// The end of a convolution, by vector of outputs (docs/int8.md): k', b', what is added to a sum, and the sums of codes.
struct Int8Finish {
  const float *mul, *add;
  const std::int32_t* init;
  std::int32_t* sums;
  float low, high, slope, inverse;
  int zero;
  bool has_init = false;     // whether anything is added to sums
  bool stays_whole = false;  // whether no result can leave the range of whole numbers before it is clamped
  Function function;
};

// How the taps of a depthwise kernel are multiplied four by four: four rows of a column together, and of a single row that is left four
// columns. The codes of four taps are brought together once for each column of the input, and every output that has one of the uses
// there reads them.
struct DepthwiseTaps {
  struct Stream {
    int row[4], column[4];  // where its codes lie beside the column
  };
  struct Use {
    int stream, column;  // beside the output's first column
  };
  std::vector<Stream> streams;
  std::vector<Use> uses;
  int span = 0;                      // columns from the first to the last use
  std::vector<std::int8_t> weights;  // [channel][use][4]
};

// Offsets into the scratch, in bytes.
struct Int8Scratch {
  std::size_t groups, masks, starts, places, mul, add, init, totals, tap_totals, weights;   // shared
  std::size_t thread, thread_size;                                                          // one area for each thread:
  std::size_t sums, rows, panel, pixels, sources, targets, transformed, products, columns;  // relative to it
  std::size_t total;
  int vectors;    // of outputs, over all groups
  int unit_rows;  // direct and depthwise: output rows of a unit; Winograd: tiles
  int row_units, panel_units;
  std::ptrdiff_t position;  // Winograd: words from one position to the next in `transformed`
  int streamed = 0;         // pairs of inputs whose rows are compacted together (stream.inl); 0: weights are gathered before
  int panel_pairs = 0;      // pairs of inputs whose filters are transformed together, for one panel; 0: not panel by panel
};

constexpr std::size_t round_bytes(std::size_t n) { return (n + 63) / 64 * 64; }

// Hands out scratch from the front, in whole cache lines.
class Int8Room {
 public:
  std::size_t take(std::size_t bytes) {
    const std::size_t here = taken_;
    taken_ += round_bytes(bytes);
    return here;
  }
  std::size_t taken() const { return taken_; }

 private:
  std::size_t taken_ = 0;
};

struct Int8Kernels;

struct Int8Plan {
  Int8Shape shape;
  const Int8Kernels* kernels;
  Tuning tuning;
  std::vector<const Int8Algorithm*> ready;
  std::int64_t sum_bound;  // the largest |A| of docs/int8.md over all outputs
  bool image_rows;         // a kernel row of an image is one run of bytes, and counts as one tap
  int taps, inputs;        // taps, and inputs of each, in a group
  int row;                 // bytes from one row of weights to the next
  ConvBuffer weights;      // int8 [group][input][tap][row]
  // Gathered for all channels, by the first task that skips none, for the algorithm that such a task takes.
  mutable ConvBuffer packed;
  const Int8Algorithm* packed_for = nullptr;
  std::size_t packed_bytes = 0;
  FirstUse first_use;
  std::vector<float> scales, bias;
  // Where the input's zero point is not 0: [input][tap_pitch], the sum of the taps of each output's weights; and by output over inputs.
  std::vector<std::int16_t> tap_sums;
  std::vector<std::int32_t> all_tap_sums;
  int tap_pitch = 0;
  DepthwiseTaps depthwise;  // of a depthwise layer, if the set multiplies four taps at a time
  std::int64_t bytes = 0;

  const std::int8_t* weights_of(int group) const {
    return reinterpret_cast<const std::int8_t*>(weights.data()) + static_cast<std::int64_t>(group) * inputs * taps * row;
  }
};

// Bytes from one position of transformed filters to the next: not a power of two, or all 36 would fall into one cache set.
constexpr std::int64_t filter_position_bytes(int pairs, int vectors, int lanes) {
  return static_cast<std::int64_t>(pairs) * vectors * lanes * 4 + 64;
}
// Bytes of the transformed filters of `vectors` vectors of outputs, all positions, in panels of at most `most` vectors.
constexpr std::int64_t filter_bytes(int pairs, int vectors, int lanes, int most) {
  return 36 * (static_cast<std::int64_t>(pairs) * vectors * lanes * 4 + 64 * ((vectors + most - 1) / most));
}

// Bytes from one compacted row of weights (without the skipped outputs) to the next.
constexpr std::ptrdiff_t compacted_pitch(int row) { return row + 16 + 64; }
// The same where rows of many inputs are kept (stream.inl).
constexpr std::ptrdiff_t stream_pitch(int out_count) { return (out_count + 15) / 16 * 16 + 16; }
// Pairs of inputs whose weights for a panel of outputs are packed, then multiplied.
inline int stream_piece(const Int8Plan& plan) {
  return plan.taps >= 9 ? plan.tuning.int8_stream_pairs : plan.tuning.int8_stream_pairs_few_taps;
}

// What a product fetches into L2 while it multiplies: the next line of the list with every `period`-th of its steps. Lines wait in
// the same few buffers as the weights that come from L2, so a product that asked for many at once would stand still.
struct Int8Lines {
  const std::uint8_t* const* at = nullptr;
  int period = std::numeric_limits<int>::max();
};

// One unit's share of what a task fetches for later, line by line, and before that the plan's own weights where they are far.
class Int8Fetcher {
 public:
  Int8Fetcher(const Int8Plan& plan, const Int8Task& task, int unit, int units);
  // Spreads the share over this many turns: calls of some() or spread().
  void expect(std::int64_t turns) { each_ = (left_ + turns - 1) / std::max<std::int64_t>(1, turns); }
  // The weights [from, from + bytes), with the next `turns` calls of spread().
  void add_own(const std::uint8_t* from, std::ptrdiff_t bytes, int turns);
  // The lines of this turn: a product of `steps` steps, each of `block` multiplications, two of which take a cycle. What is for later
  // and more than one line in int8_fetch_cycles waits for the next turn.
  Int8Lines spread(int steps, int block) {
    if (left_ == 0 && own_ >= own_end_) return {};
    return list_lines(steps, block);
  }
  // The lines of this turn at once.
  void some() {
    for (std::int64_t n = std::min(each_, left_); n > 0; --n) fetch_far(next_line());
  }

 private:
  static constexpr int kMostLines = 256;

  const std::uint8_t* next_line() {
    const Int8Fetch& now = task_.later[item_];
    const std::uint8_t* const line = now.rows + (now.list ? now.list[row_] : row_) * now.bytes + at_;
    --left_;
    if ((at_ += 64) >= now.bytes) {
      at_ = 0;
      if (++row_ >= now.count) {
        row_ = 0;
        ++item_;
      }
    }
    return line;
  }
  Int8Lines list_lines(int steps, int block);

  const Int8Task& task_;
  std::int64_t left_ = 0, each_ = 0;
  int item_ = 0, row_ = 0;
  std::ptrdiff_t at_ = 0;
  const std::uint8_t *own_ = nullptr, *own_end_ = nullptr;
  int own_each_ = 0;
  int cycles_;                               // between two lines
  int steps_ = 0, wanted_ = 0, period_ = 0;  // of the last turn
  const std::uint8_t* lines_[kMostLines];
};

// One task on its way: everything the kernels need, with pointers into the scratch.
struct Int8Run {
  const Int8Plan& plan;
  const Int8Task& task;
  Int8Scratch lay;
  std::uint8_t* scratch;
  Int8Fetcher* fetcher = nullptr;  // in the second stage
  const Int8Group* groups() const { return reinterpret_cast<const Int8Group*>(scratch + lay.groups); }
  std::uint8_t* mine(int member) const { return scratch + lay.thread + static_cast<std::size_t>(member) * lay.thread_size; }
  const std::uint8_t* weights() const;  // gathered for this image, or the plan's
};

struct Int8Kernels {
  const char* name;
  Isa isa;
  int lanes, most_vectors;
  int group;     // inputs that a lane multiplies at once: 4 or 8 codes, or 2 codes widened to words
  bool streams;  // whether weights can be gathered piece by piece (stream.inl)
  // Inputs [begin, end) of a group, in pairs or quads, for all taps; with_transform: to 36 positions.
  void (*gather)(const Int8Run& run, int group, int begin, int end, bool with_transform, std::uint8_t* rows, std::uint8_t* to);
  // Pairs [begin, end) transformed to 36 positions, for one panel of outputs; null where the set has no such kernel.
  void (*gather_panel)(const Int8Run& run, int panel, int begin, int end, std::uint8_t* to);
  bool permutes_bytes;  // gathers by byte permutations (VBMI); costs are fitted to the cores that do and those that do not
  void (*direct)(const Int8Run& run, int unit, int member);
  void (*winograd)(const Int8Run& run, int unit, int member);
  void (*depthwise)(const Int8Run& run, int unit, int member);
  void (*gather_depthwise)(const Int8Run& run, std::uint8_t* to);
  bool depthwise_quads;  // whether depthwise() takes four taps at a time (DepthwiseTaps)
  // sums[i] = over the listed rows, less `first`: row[i], of `columns` columns or a few more. No word passes `most`.
  void (*sum_rows)(const std::int16_t* rows, std::ptrdiff_t pitch, const std::int32_t* list, int count, int first, int columns,
                   int most, std::int32_t* sums);
  // totals[i] += value * row[i], modulo 2^32.
  void (*add_row)(const std::int8_t* row, int count, std::int32_t value, std::uint32_t* totals);
  MapKernels maps;
};

// As plan_int8, with the kernels and the tuning given by the caller.
Int8PlanPtr plan_int8_with(const Int8Kernels& kernels, const Tuning& tuning, const Int8Shape& shape, const std::int8_t* weights,
                           const float* scales, const float* bias, const Int8Algorithm* algorithm, std::string& why);
// Room for the weights of all channels, gathered once, for tasks that skip none.
void plan_packing(Int8Plan& plan);

// The scratch of a task with these numbers of active channels.
Int8Scratch lay_out(const Int8Plan& plan, const Int8Algorithm* algorithm, int in_count, int out_count, int threads);
// Where a task's weights come from: gathered before they are multiplied, the plan's own, or gathered as they are multiplied, in
// pieces of rows (stream.inl) or of panels (gather_panel).
enum class Int8Weights { gathered, packed, streamed, by_panel };
Int8Weights weights_of(const Int8Plan& plan, const Int8Algorithm* algorithm, int in_count, int out_count, int threads);
// What direct and depthwise share: units of whole output rows, whose input is copied first where `copies` says so, `pixel` bytes
// for each of its pixels.
void lay_out_rows(const Int8Plan& plan, int threads, bool copies, std::size_t pixel, Int8Room& room, Int8Scratch& lay);
std::size_t most_row_bytes(const Int8Plan& plan, const Int8Scratch& lay);
// What direct and Winograd share: gathering `size` inputs at a time, in units of inputs or, where there are several, of groups.
int gather_units(const Int8Run& run, int size);
void gather_unit(const Int8Run& run, int unit, int member, int size, bool with_transform, std::uint8_t* to);
inline bool all_active(const Int8Plan& plan, int in_count, int out_count) {
  return in_count == plan.shape.in_channels && out_count == plan.shape.out_channels;
}
// Whether the weights of all channels are too many to be in L2 when a task begins, so that costs of gathering count for more.
inline bool has_far_filters(const Int8Plan& plan) {
  return static_cast<std::int64_t>(plan.inputs) * plan.taps * plan.row > static_cast<std::int64_t>(plan.tuning.int8_near_bytes);
}
// Whether every output reads the one input of its number.
bool is_depthwise(const Int8Plan& plan);

constexpr int kInt8MostTaps = 256;
static_assert(127 * kInt8MostTaps < 1 << 15);  // tap_sums are words
constexpr int kInt8RowSlack = 64;              // columns that sum_rows may pass the last one by

// Depthwise layers four taps at a time: the columns whose codes are brought together before they are multiplied, and the bytes of a
// column, or of a use's weights.
constexpr int kDepthwiseColumns = 64, kDepthwiseBytes = 256;
DepthwiseTaps plan_depthwise(const Int8Shape& shape, const std::int8_t* weights);

// low, high and what else follows from the function and the scale of the result.
void set_limits(Int8Finish& finish, Function function, float slope, Quantised out);

// A macro's value as text.
#define PENSTOCK_TEXT(x) PENSTOCK_TEXT_NOW(x)
#define PENSTOCK_TEXT_NOW(x) #x

}  // namespace penstock
