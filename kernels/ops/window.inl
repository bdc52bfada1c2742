// The values of a map that lie under one pooling window, and how many of them a mean is taken over.
namespace penstock {
namespace PENSTOCK_ISA {

// A window along one side of a map.
struct WindowSide {
  int begin, end;  // the first tap that lies inside the map, and where the map or the window ends
  int values;      // taps inside
  int padded;      // values that count where padding does: as far as it was declared, not what ceil mode adds beyond it
};

PENSTOCK_INLINE WindowSide window_side(int start, int kernel, int dilation, int pad, int size) {
  const int begin = start >= 0 ? start : start + (-start + dilation - 1) / dilation * dilation;
  const int reach = start + (kernel - 1) * dilation + 1, end = reach < size ? reach : size;
  const int edge = start + kernel < size + pad ? start + kernel : size + pad;
  return {begin, end, end > begin ? (end - begin + dilation - 1) / dilation : 0, edge - start};
}

struct PoolWindow {
  WindowSide down, across;

  bool empty() const { return down.values == 0 || across.values == 0; }

  // What the sum is divided by.
  int divisor(const PoolShape& s) const {
    if (s.divisor > 0) return s.divisor;
    return s.count_padding ? down.padded * across.padded : down.values * across.values;
  }
};

// The window whose first tap is at (y, x), which may lie in the padding.
PENSTOCK_INLINE PoolWindow pool_window(const PoolShape& s, int height, int width, int y, int x) {
  return {window_side(y, s.kernel_h, s.dilation_h, s.pad_h, height), window_side(x, s.kernel_w, s.dilation_w, s.pad_w, width)};
}

}  // namespace PENSTOCK_ISA
}  // namespace penstock
