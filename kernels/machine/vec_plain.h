// What vectors of 4 floats without an instruction for it do lane by lane. Included by vec_scalar.h and vec_neon.h.

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
