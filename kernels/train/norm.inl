// The kernels of train/norm.h, one image each, written once against vec.h (which train/conv.inl has included).
namespace penstock {
namespace PENSTOCK_ISA {

// Count vectors of channels from `first` on; a single one may hold fewer channels than lanes.
template <int Count>
struct Group {
  static constexpr int kCount = Count;
  Index first, left;

  Vec get(const float* p, int v) const { return Count > 1 ? load(p + first + v * kLanes) : load_first(p + first, left); }
  void put(float* p, int v, Vec value) const {
    if (Count > 1) return store(p + first + v * kLanes, value);
    store_first(p + first, value, static_cast<int>(left < kLanes ? left : kLanes));
  }
};

// Calls work with groups that together cover all channels.
template <typename Work>
PENSTOCK_INLINE void each_group(Index channels, const Work& work) {
  constexpr int kWide = 4;
  Index first = 0;
  for (; first + kWide * kLanes <= channels; first += kWide * kLanes) work(Group<kWide>{first, kWide * kLanes});
  for (; first < channels; first += kLanes) work(Group<1>{first, channels - first});
}

PENSTOCK_INLINE Vec where_above(Vec x, Vec yes, Vec no) { return x > zero() ? yes : no; }

// h of train/norm.h, from o, g and e.
template <bool Relu>
PENSTOCK_INLINE Vec through(Vec o, Vec g, Vec e) {
  if (Relu) return where_above(o, g + e, zero());
  return g + where_above(o, e, where_above(zero() - o, zero() - e, zero()));
}

static void norm_moments_of(const NormShape& s, const float* z, const float* pivot, float* sums, float* squares) {
  each_group(s.channels, [&](auto group) {
    constexpr int kCount = decltype(group)::kCount;
    Vec at[kCount], sum[kCount], square[kCount];
    for (int v = 0; v < kCount; ++v) at[v] = group.get(pivot, v), sum[v] = zero(), square[v] = zero();
    for (Index p = 0; p < s.pixels; ++p)
      for (int v = 0; v < kCount; ++v) {
        const Vec x = group.get(z + p * s.channels, v) - at[v];
        sum[v] = sum[v] + x;
        square[v] = fma(x, x, square[v]);
      }
    for (int v = 0; v < kCount; ++v) group.put(sums, v, sum[v]), group.put(squares, v, square[v]);
  });
}

template <bool Relu>
static void norm_apply_of(const NormShape& s, const NormMaps& m, float* out, float* sizes) {
  each_group(s.channels, [&](auto group) {
    constexpr int kCount = decltype(group)::kCount;
    Vec a[kCount], b[kCount], size[kCount];
    for (int v = 0; v < kCount; ++v) a[v] = group.get(m.scale, v), b[v] = group.get(m.shift, v), size[v] = zero();
    for (Index p = 0; p < s.pixels; ++p)
      for (int v = 0; v < kCount; ++v) {
        Vec o = fma(a[v], group.get(m.z + p * s.channels, v), b[v]);
        if (Relu) o = where_above(zero() - o, zero(), o);  // a NaN stays one
        size[v] = size[v] + max(o, zero() - o);
        group.put(out + p * s.channels, v, o);
      }
    for (int v = 0; v < kCount; ++v) group.put(sizes, v, size[v]);
  });
}

template <bool Relu>
static void norm_sums_of(const NormShape& s, const NormMaps& m, float* sums, float* products) {
  each_group(s.channels, [&](auto group) {
    constexpr int kCount = decltype(group)::kCount;
    Vec a[kCount], b[kCount], e[kCount], sum[kCount], product[kCount];
    for (int v = 0; v < kCount; ++v) {
      a[v] = group.get(m.scale, v), b[v] = group.get(m.shift, v), e[v] = group.get(m.extra, v);
      sum[v] = zero(), product[v] = zero();
    }
    for (Index p = 0; p < s.pixels; ++p)
      for (int v = 0; v < kCount; ++v) {
        const Vec z = group.get(m.z + p * s.channels, v);
        const Vec h = through<Relu>(fma(a[v], z, b[v]), group.get(m.g + p * s.channels, v), e[v]);
        sum[v] = sum[v] + h;
        product[v] = fma(h, z, product[v]);
      }
    for (int v = 0; v < kCount; ++v) group.put(sums, v, sum[v]), group.put(products, v, product[v]);
  });
}

template <bool Relu>
static void norm_gradient_of(const NormShape& s, const NormMaps& m, const float* k1, const float* k0, float* dz) {
  each_group(s.channels, [&](auto group) {
    constexpr int kCount = decltype(group)::kCount;
    for (Index p = 0; p < s.pixels; ++p)
      for (int v = 0; v < kCount; ++v) {
        const Vec a = group.get(m.scale, v), z = group.get(m.z + p * s.channels, v);
        const Vec o = fma(a, z, group.get(m.shift, v));
        const Vec h = through<Relu>(o, group.get(m.g + p * s.channels, v), group.get(m.extra, v));
        group.put(dz + p * s.channels, v, fma(a, h, fma(group.get(k1, v), z, group.get(k0, v))));
      }
  });
}

static void norm_apply_image(const NormShape& s, const NormMaps& m, float* out, float* sizes) {
  s.relu ? norm_apply_of<true>(s, m, out, sizes) : norm_apply_of<false>(s, m, out, sizes);
}
static void norm_sums_image(const NormShape& s, const NormMaps& m, float* sums, float* products) {
  s.relu ? norm_sums_of<true>(s, m, sums, products) : norm_sums_of<false>(s, m, sums, products);
}
static void norm_gradient_image(const NormShape& s, const NormMaps& m, const float* k1, const float* k0, float* dz) {
  s.relu ? norm_gradient_of<true>(s, m, k1, k0, dz) : norm_gradient_of<false>(s, m, k1, k0, dz);
}

static const TrainNormKernels kTrainNorm = {norm_moments_of, norm_apply_image, norm_sums_image, norm_gradient_image};

}  // namespace PENSTOCK_ISA
}  // namespace penstock
