// The window that slides over a map, of a convolution or a pooling. Files compiled for a wide instruction set include this; it must
// define no functions (see conv/kernels.h).
#pragma once

namespace penstock {

struct SlidingWindow {
  int kernel_h = 1, kernel_w = 1;
  int stride_h = 1, stride_w = 1;
  int pad_h = 0, pad_w = 0;  // zeros on each side
  int dilation_h = 1, dilation_w = 1;
};

struct PoolShape : SlidingWindow {
  int divisor = 0;             // 0: the number of values under the window
  bool count_padding = false;  // average only: zeros of the padding count as values
};

}  // namespace penstock
