// The products of skip.h between two lists of channels, written once against vec.h.
namespace penstock {
namespace PENSTOCK_ISA {

// A register block has kSkipOuts output channels by kSkipWide tiles; in a weight gradient, by kSkipWide input channels.
constexpr int kSkipOuts = kRegisters >= 32 ? 6 : 3;
constexpr int kSkipWide = 4;
// Floats of one operand that stay in L1 (32 KiB) beside the other operand. It is less than half of L1, because the filters of
// winners use only about two thirds of the cache lines they occupy.
constexpr Index kSkipCache = 3 << 10;
constexpr Index kSkipTiles = 16;  // tiles of both operands of a weight gradient that stay in L1 together

template <int N>
struct Number {
  static constexpr int value = N;
};

// Calls work(Number<n>) for a count of 1 to Most, so that a block's size is known when it is compiled.
template <int Most, typename Work>
PENSTOCK_INLINE void with_number(Index n, const Work& work) {
  if constexpr (Most > 1) {
    if (n < Most) return with_number<Most - 1>(n, work);
  }
  work(Number<Most>{});
}

template <int Outs, int Tiles>
PENSTOCK_INLINE void multiply_block(const SkipProduct& p, const float* v, const float* u, Index out, float* m) {
  const float* filter[Outs];
  Vec sum[Outs][Tiles];
#pragma GCC unroll 6
  for (int o = 0; o < Outs; ++o) {
    filter[o] = u + p.outs[out + o] * p.out_step;
#pragma GCC unroll 4
    for (int t = 0; t < Tiles; ++t) sum[o][t] = zero();
  }
  for (Index i = 0; i < p.in_count; ++i, v += p.place_step) {
    const Index at = p.ins[i] * Index{kLanes};
    Vec weight[Outs];
#pragma GCC unroll 6
    for (int o = 0; o < Outs; ++o) weight[o] = load(filter[o] + at);
#pragma GCC unroll 4
    for (int t = 0; t < Tiles; ++t) {
      const Vec value = load(v + t * kLanes);
#pragma GCC unroll 6
      for (int o = 0; o < Outs; ++o) sum[o][t] = fma(weight[o], value, sum[o][t]);
    }
  }
#pragma GCC unroll 6
  for (int o = 0; o < Outs; ++o)
#pragma GCC unroll 4
    for (int t = 0; t < Tiles; ++t) store(m + (out + o) * p.place_step + t * kLanes, sum[o][t]);
}

static void skip_multiply(const SkipProduct& p, const float* v, const float* u, float* m) {
  // The filters of `some` outputs stay in L1 while all tiles pass by.
  const Index fit = kSkipCache / (p.in_count * kLanes + 1) / kSkipOuts * kSkipOuts;
  const Index some = fit > kSkipOuts ? fit : kSkipOuts;
  for (Index first = p.out_first; first < p.out_last; first += some) {
    const Index last = first + some < p.out_last ? first + some : p.out_last;
    for (Index tile = 0; tile < p.tiles; tile += kSkipWide)
      with_number<kSkipWide>(p.tiles - tile, [&](auto tiles) {
        for (Index out = first; out < last; out += kSkipOuts)
          with_number<kSkipOuts>(last - out, [&](auto outs) {
            multiply_block<decltype(outs)::value, decltype(tiles)::value>(p, v + tile * kLanes, u, out, m + tile * kLanes);
          });
      });
  }
}

template <int Outs, int Ins>
PENSTOCK_INLINE void accumulate_block(const SkipProduct& p, const float* v, const float* d, Index tiles, Index out, Index in,
                                      float* du) {
  const float* const left = v + in * p.place_step;
  const float* const right = d + out * p.place_step;
  Vec sum[Outs][Ins];
#pragma GCC unroll 6
  for (int o = 0; o < Outs; ++o)
#pragma GCC unroll 4
    for (int i = 0; i < Ins; ++i) sum[o][i] = zero();
  for (Index t = 0; t < tiles; ++t) {
    Vec slope[Outs];
#pragma GCC unroll 6
    for (int o = 0; o < Outs; ++o) slope[o] = load(right + o * p.place_step + t * kLanes);
#pragma GCC unroll 4
    for (int i = 0; i < Ins; ++i) {
      const Vec value = load(left + i * p.place_step + t * kLanes);
#pragma GCC unroll 6
      for (int o = 0; o < Outs; ++o) sum[o][i] = fma(slope[o], value, sum[o][i]);
    }
  }
#pragma GCC unroll 6
  for (int o = 0; o < Outs; ++o)
#pragma GCC unroll 4
    for (int i = 0; i < Ins; ++i) {
      float* const to = du + p.outs[out + o] * p.out_step + p.ins[in + i] * Index{kLanes};
      store(to, load(to) + sum[o][i]);
    }
}

static void skip_accumulate(const SkipProduct& p, const float* v, const float* d, float* du) {
  for (Index tile = 0; tile < p.tiles; tile += kSkipTiles) {
    const Index tiles = p.tiles - tile < kSkipTiles ? p.tiles - tile : kSkipTiles;
    const Index fit = kSkipCache / (tiles * kLanes) / kSkipWide * kSkipWide;
    for (Index first = 0; first < p.in_count; first += fit) {
      const Index last = first + fit < p.in_count ? first + fit : p.in_count;
      for (Index out = p.out_first; out < p.out_last; out += kSkipOuts)
        with_number<kSkipOuts>(p.out_last - out, [&](auto outs) {
          for (Index in = first; in < last; in += kSkipWide)
            with_number<kSkipWide>(last - in, [&](auto ins) {
              accumulate_block<decltype(outs)::value, decltype(ins)::value>(p, v + tile * kLanes, d + tile * kLanes, tiles, out, in,
                                                                            du);
            });
        });
    }
  }
}

static const SkipKernels kSkip = {
    kLanes, {skip_transforms<EveryPixel>(), skip_transforms<EverySecondPixel>()}, skip_multiply, skip_accumulate};

}  // namespace PENSTOCK_ISA
}  // namespace penstock
