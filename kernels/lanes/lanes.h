// What convolutions and other operations on maps of pixels share.
#pragma once
#include "conv/conv.h"
#include "lanes/kernels.h"
#include "run/pixels.h"

namespace penstock {

// The kernels of one set.
const LanesKernels& lanes_kernels(Isa isa);

constexpr std::size_t kPickSlack = 64;  // floats that picking may read past the last weight

// Zeroes the padding of a map with so many floats a pixel.
void clear_pixel_padding(float* map, Planes shape, std::ptrdiff_t pixel);

// The pieces that bring channels of `from` into the order of `to`, by vector; channels that `from` lacks become zeros. Returns false,
// and writes nothing, when the lists are the same. There is room for spread_pieces() of them.
bool set_spread(const LanesKernels& kernels, const std::int32_t* from, int from_count, const std::int32_t* to, int to_count,
                std::int32_t* first_piece, LanesPiece* pieces);
// An upper bound: every piece begins a vector of `to`, of 4 lanes or more, or lies a vector of `from` after the piece before it.
constexpr std::int64_t spread_pieces(int from_count, int to_count) { return (std::int64_t{from_count} + to_count) / 4 + 4; }

// A 1x1 convolution of pixels is computed in blocks of pixels: block b begins at pixel [pixels * b / blocks]. In the stage of the
// products, which is the last one of a task that asks for no sums, the units of a block follow each other. One thread takes the blocks
// in order, or, where another map is added, from the last to the first; in the block that it begins with, the weights are gathered.
int lanes_blocks(const ConvPlan& plan);
// Whether a convolution can add another map: its pixels, and those of both maps, run on without padding.
bool lanes_can_add(const ConvShape& shape);

LanesOutput lanes_output(const ConvPlan& plan, const ConvTask& task, const float* gain, const float* offset);

}  // namespace penstock
