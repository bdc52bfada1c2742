// Gated 3x3 convolutions of stride 1 or 2 for training that computes each image's winners only, forwards and backwards.
//
// A packed map holds the channels that won in an image and no others: [pixel][winner], winners in increasing order. Each pixel is
// padded to whole vectors, and what the padding holds is never used. Image n begins where it would begin in a map of all channels
// (rounded up to kSkipUnit), so only the memory that winners need is touched. Which channels won is one byte for each image and
// channel.
//
// Convolutions go by Winograd's method with outputs in tiles of 4x4. Unlike in conv.h the lanes of a vector are positions of one
// transformed tile, so that a pair of an input and an output is a few whole vectors, and any pair may be left out:
//
//   M[o][tile] = sum over the winners i of V[i][tile] . U[o][i]             element by element, position by position
//
// Stride 1 is F(4x4, 3x3): 36 positions. With stride 2 the even rows and columns of the input meet two taps of the filter and the
// odd ones meet one tap. Along each axis the even samples take 5 products by F(4, 2) and the odd ones take 4. That is 81 positions
// for 16 outputs, where the direct method needs 144 products. Both gradients are the same steps transposed, as in conv.h.
//
// All work is divided in parts that do not depend on the number of threads: neither do the results.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "machine/cpu.h"
#include "train/conv.h"
#include "train/norm.h"

namespace penstock {

class Team;

constexpr std::int64_t kSkipUnit = 16;  // the widest vector of any instruction set

struct SkipShape {
  std::int64_t images, in, out, height, width, padding, stride;  // height and width of the input

  std::int64_t out_height() const { return (height + 2 * padding - 3) / stride + 1; }
  std::int64_t out_width() const { return (width + 2 * padding - 3) / stride + 1; }
  std::int64_t tiles_down() const { return (out_height() + 3) / 4; }
  std::int64_t tiles_across() const { return (out_width() + 3) / 4; }
  std::int64_t tiles() const { return tiles_down() * tiles_across(); }  // of one image
};

// False when a size is out of range; `what` then says which.
bool valid(const SkipShape& shape, const char** what);

// Channels of a packed map's memory.
inline std::int64_t skip_capacity(std::int64_t channels) { return (channels + kSkipUnit - 1) / kSkipUnit * kSkipUnit; }

// Each image's winners as rising lists of channels.
class Winners {
 public:
  // won: [image][channel], anything but 0 is a win. lanes: floats of a vector; a packed pixel is a whole number of vectors.
  Winners(const std::uint8_t* won, std::int64_t images, std::int64_t channels, int lanes);

  const std::int32_t* list(std::int64_t image) const { return lists_.data() + image * channels_; }
  std::int64_t count(std::int64_t image) const { return counts_[static_cast<std::size_t>(image)]; }
  std::int64_t pitch(std::int64_t image) const { return (count(image) + lanes_ - 1) / lanes_ * lanes_; }
  std::int64_t widest() const { return widest_; }  // the largest pitch of any image
  std::int64_t channels() const { return channels_; }
  std::int64_t capacity() const { return skip_capacity(channels_); }
  // The place in an image's list of the first winner from `channel` on.
  std::int64_t place(std::int64_t image, std::int64_t channel) const;

  // From one number for each channel of an image to one for each winner, and back (losers get 0).
  void gather(std::int64_t image, const float* numbers, float* packed) const;
  void scatter(std::int64_t image, const float* packed, float* numbers) const;

 private:
  std::int64_t channels_, lanes_, widest_ = 0;
  std::vector<std::int32_t> lists_, counts_;
};

// x, z: packed maps of the input's and the output's winners; w [out][3][3][in]. means, squares [image][out]: the mean of each
// winner's plane of z, and the sum of the squared differences from that mean.
void skip_forward(Isa isa, Team& team, Scratch& scratch, const SkipShape& shape, const float* x, const std::uint8_t* won_in,
                  const float* w, const std::uint8_t* won_out, float* z, float* means, float* squares);

// norm_apply and norm_sums of norm.h on packed maps; values for each channel are [image][channel].
void skip_apply(Isa isa, Team& team, const NormShape& s, const std::uint8_t* won, const NormMaps& maps, float* out, float* sizes);
void skip_sums(Isa isa, Team& team, const NormShape& s, const std::uint8_t* won, const NormMaps& maps, float* sums,
               float* products);

// norm_gradient on packed maps (k1, k0 [image][out]), then the convolution's gradients: dx (packed like x; may be null) and dw.
struct SkipGradient {
  NormMaps maps;  // of the output
  const float* k1;
  const float* k0;
  bool relu;
};
void skip_backward(Isa isa, Team& team, Scratch& scratch, const SkipShape& shape, const float* x, const std::uint8_t* won_in,
                   const float* w, const std::uint8_t* won_out, const SkipGradient& gradient, float* dx, float* dw);

// One image's part of each: the moments of skip_forward, and norm_gradient of skip_backward into dz, which holds this image alone.
void skip_moments(Isa isa, const Winners& winners, std::int64_t image, std::int64_t pixels, const float* z, float* means,
                  float* squares);
void skip_norm_gradient(Isa isa, const Winners& winners, std::int64_t image, std::int64_t pixels, const SkipGradient& gradient,
                        float* dz);

// [image][pixel][channel] to a packed map, and back with zeros for losers.
void skip_pack(Isa isa, Team& team, const NormShape& s, const std::uint8_t* won, const float* whole, float* packed);
void skip_unpack(Isa isa, Team& team, const NormShape& s, const std::uint8_t* won, const float* packed, float* whole);

// Transformed tiles of one image: [group of positions][place in the list][tile][lane]. In the last group several tiles may share a
// vector (`last_tiles` of SkipTransforms). Steps are in floats.
struct SkipTiles {
  float* data;
  std::int64_t group_step, place_step;
};

// Transformed filters: [group of positions][output][input][lane], or with outputs and inputs exchanged. Steps are in floats.
struct SkipFilters {
  float* data;
  std::int64_t group_step, out_step, in_step;
};

// The transforms of one stride, with one instruction set. `pitch` is that of the packed map that is read or written.
struct SkipTransforms {
  int groups;
  int last_tiles;  // tiles that share a vector of the last group
  void (*filters)(const SkipShape& s, const float* w, std::int64_t o, const SkipFilters& to);
  void (*filter_gradient)(const SkipShape& s, const SkipFilters& du, std::int64_t o, float* dw);
  void (*input_tiles)(const SkipShape& s, const float* x, std::int64_t pitch, const SkipTiles& to);
  void (*output_tiles)(const SkipShape& s, const SkipTiles& from, float* y, std::int64_t pitch);
  void (*gradient_tiles)(const SkipShape& s, const float* dy, std::int64_t pitch, const SkipTiles& to);
  void (*add_input_tiles)(const SkipShape& s, const SkipTiles& from, float* dx, std::int64_t pitch);
};

// The products of one group of positions in one image, between two lists of channels.
struct SkipProduct {
  std::int64_t tiles;       // vectors of each place: as many as tiles, or fewer where tiles share a vector
  std::int64_t place_step;  // of the tiles of the inputs and of the outputs
  const std::int32_t* ins;  // channels whose tiles are read
  std::int64_t in_count;
  const std::int32_t* outs;
  std::int64_t out_first, out_last;  // places [out_first, out_last) of `outs` to work on
  std::int64_t out_step;             // from one output's filters to the next; inputs lie side by side
};

struct SkipKernels {
  int lanes;
  SkipTransforms transforms[2];  // strides 1 and 2
  // m[o][tile] = sum over i of v[i][tile] u[o][i].
  void (*multiply)(const SkipProduct& p, const float* v, const float* u, float* m);
  // du[o][i] += sum over tiles of v[i][tile] d[o][tile].
  void (*accumulate)(const SkipProduct& p, const float* v, const float* d, float* du);
};

}  // namespace penstock
