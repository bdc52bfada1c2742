// Fetching weights ahead. A list of channels leaves gaps in them that the hardware cannot foresee.
//
// What is fetched waits in the few line buffers that the product's own loads need too, so it is fetched evenly, one line for
// every two inputs. Twice as many at a time, or all of them in the first passes, gain nothing or lose: then the product waits.
namespace penstock {
namespace PENSTOCK_ISA {

// AVX-512 has a whole vector in every line: its loads miss the first-level cache so often that fetching no further than
// the second one leaves weights a step too far away. With AVX2 there is more to fetch at a time than the first level holds.
PENSTOCK_INLINE void fetch(const float* p) { __builtin_prefetch(p, 0, kLanes == 16 ? 3 : 2); }

// What a pass fetches: floats of a row of weights, one of each cache line.
struct Ahead {
  const float* row;
  const std::int32_t* places;
};

// Places in a row of weights, `size` floats an input: one in every cache line that the inputs of a list lie in, if rows
// begin at whole lines. The last one is repeated, so that a pass may begin anywhere and take as many as it has turns.
template <int kMost>
struct UsedLines {
  std::int32_t places[3 * kMost];
  int count = 0;

  UsedLines() = default;
  UsedLines(const std::int32_t* list, int inputs, int size) {
    constexpr int kLine = 16;
    int last = -1;
    for (int i = 0; i < inputs; ++i) {
      const int begin = list[i] * size, end = begin + size - 1;
      if (begin / kLine != last) places[count++] = begin;
      last = end / kLine;
      if (begin / kLine != last) places[count++] = end;
    }
    for (int i = 0; i < inputs; ++i) places[count + i] = count > 0 ? places[count - 1] : 0;
  }
};

// What each of at most kMost passes fetches, with `turns` turns each.
template <int kMost>
struct AheadOf {
  Ahead passes[kMost];
  int count = 0;
  const int most, turns;

  AheadOf(int most, int turns) : most(turns > 0 ? most : 0), turns(turns) {}

  template <typename Lines>
  void add(const float* row, const Lines& lines) {
    if (most == 0) return;
    const int parts = (lines.count + turns - 1) / turns;
    for (int part = 0; part < parts && count < most; ++part) passes[count++] = {row, lines.places + lines.count * part / parts};
  }
};

}  // namespace PENSTOCK_ISA
}  // namespace penstock
