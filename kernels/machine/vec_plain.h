// What is the same for every vector of 4 floats, which is one quad: vec_scalar.h and vec_neon.h include this at their end. Picking
// has no instruction there and goes lane by lane.

PENSTOCK_INLINE Vec splat_quad(const float* p) { return load(p); }
PENSTOCK_INLINE Vec load_quads(const float* const* p, std::ptrdiff_t offset) { return load(p[0] + offset); }
PENSTOCK_INLINE void load_lines(const float* const* p, std::ptrdiff_t offset, Vec (&v)[4]) {
  for (int g = 0; g < 4; ++g) v[g] = load(p[0] + offset + g * 4);
}
PENSTOCK_INLINE void store_quads(float* p, std::ptrdiff_t, Vec v) { store(p, v); }
PENSTOCK_INLINE Vec next_quads(Vec, Vec b) { return b; }
PENSTOCK_INLINE Vec reciprocal(Vec v) { return splat(1.0f) / v; }

struct LanePlaces {
  std::int32_t at[4];
};
constexpr int kPickSpan = 8;
PENSTOCK_INLINE LanePlaces load_places(const std::int32_t* p) { return {{p[0], p[1], p[2], p[3]}}; }
PENSTOCK_INLINE Vec pick(const float* p, const LanePlaces& places) {
  float lanes[4];
  for (int i = 0; i < 4; ++i) lanes[i] = places.at[i] < 0 ? 0.0f : p[places.at[i]];
  return load(lanes);
}
PENSTOCK_INLINE Vec pick_near(const float* p, const LanePlaces& places) { return pick(p, places); }
