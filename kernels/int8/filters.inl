// Filters of Winograd F(4x4, 3x3): their transform in whole numbers, and where they lie.
//
// The first and the last are taken six times, so that the sums after the product (backward() in winograd.inl) need not be: filters are
// transformed once for all tiles, and still fit a word.
PENSTOCK_INLINE Half six_times(Half g) {
  std::int16_t six = 6;
  __asm__("" : "+r"(six));  // or the compiler would make two shifts and a sum of one multiplication
  return g * six;
}

PENSTOCK_INLINE void transform_filter(const Half* g, Half* t) {
  const Half s = g[0] + g[2], u = g[0] + (g[2] << 2), v = g[1] + g[1];
  t[0] = six_times(g[0]);
  t[1] = s + g[1];
  t[2] = s - g[1];
  t[3] = u + v;
  t[4] = u - v;
  t[5] = six_times(g[2]);
}

// Where the transformed filters of panel p begin, whose first vector is v0.
PENSTOCK_INLINE std::ptrdiff_t panel_filters(int v0, int p, int pairs) {
  return 36 * (static_cast<std::ptrdiff_t>(v0) * pairs * kVectorBytes + 64 * p);
}
