#include "train/skip.h"

#include <algorithm>

#include "run/team.h"
#include "train/kernels.h"

namespace penstock {
namespace {

constexpr std::int64_t kLine = 16;               // floats in a cache line
constexpr std::int64_t kTileFloats = 1 << 20;    // tiles of the input, or of the output, at a time (4 MiB): both stay in L3
constexpr std::int64_t kFilterFloats = 1 << 16;  // filters that one part of the products reads again and again (256 KiB)
constexpr std::int64_t kSplit = 4;               // about how many parts the products of a group of positions are divided into

// The transformed tiles of the input or of the output: how many images are worked on at a time, and where each tile lies.
class Tiles {
 public:
  Tiles(const SkipShape& s, const SkipKernels& kernel, int groups, const Winners& winners, std::int64_t images)
      : place_step_(step_of(s, kernel)),
        image_step_(winners.widest() * place_step_),
        group_step_(image_step_ * images + kLine),
        groups_(groups) {}

  static std::int64_t images_at_a_time(const SkipShape& s, const SkipKernels& kernel, int groups, std::int64_t widest) {
    const std::int64_t floats = std::max<std::int64_t>(1, widest) * step_of(s, kernel) * groups;
    return std::clamp<std::int64_t>(kTileFloats / floats, 1, s.images);
  }

  std::int64_t floats() const { return group_step_ * groups_; }
  void place_at(float* data) { data_ = data; }
  SkipTiles of(std::int64_t image) const { return {data_ + image * image_step_, group_step_, place_step_}; }
  std::int64_t place_step() const { return place_step_; }
  float* of(std::int64_t group, std::int64_t image) const { return data_ + group * group_step_ + image * image_step_; }

 private:
  // Where there are many tiles one cache line is left free: without it all places would fall into a few cache sets.
  static std::int64_t step_of(const SkipShape& s, const SkipKernels& kernel) {
    const std::int64_t floats = s.tiles() * kernel.lanes;
    return floats < 4 * kLine ? floats : (floats + kLine - 1) / kLine * kLine + kLine;
  }

  std::int64_t place_step_, image_step_, group_step_, groups_;
  float* data_ = nullptr;
};

// The products of a chunk of images, divided into parts. A part is a group of positions, a range of the channels that are computed
// and a block of the images; neighbouring parts read the same filters.
class Parts {
 public:
  // row: floats of one channel's filters. all_images: the products are summed over images, so a part has to have all of them.
  Parts(const SkipTransforms& transform, std::int64_t channels, std::int64_t row, std::int64_t images, bool all_images)
      : groups_(transform.groups), last_tiles_(transform.last_tiles) {
    const std::int64_t fit = std::max<std::int64_t>(1, kFilterFloats / row);
    size_ = std::min(fit, all_images ? (channels + kSplit - 1) / kSplit : channels);
    ranges_ = (channels + size_ - 1) / size_;
    block_ = all_images ? images : (images + kSplit - 1) / kSplit;
    blocks_ = (images + block_ - 1) / block_;
    count_ = static_cast<int>(groups_ * ranges_ * blocks_);
  }
  int count() const { return count_; }
  std::int64_t group(int part) const { return part / (ranges_ * blocks_); }

  // Calls work(product, image) for each image with anything to do in this part.
  template <typename Work>
  void each_image(int part, const SkipShape& s, const Winners& from, const Winners& to, std::int64_t place_step,
                  std::int64_t out_step, std::int64_t first, std::int64_t images, const Work& work) const {
    const std::int64_t begin = part / blocks_ % ranges_ * size_, from_image = part % blocks_ * block_;
    const std::int64_t vectors = group(part) == groups_ - 1 ? (s.tiles() + last_tiles_ - 1) / last_tiles_ : s.tiles();
    for (std::int64_t i = from_image; i < std::min(from_image + block_, images); ++i) {
      const std::int64_t image = first + i;
      const SkipProduct product{vectors,
                                place_step,
                                from.list(image),
                                from.count(image),
                                to.list(image),
                                to.place(image, begin),
                                to.place(image, begin + size_),
                                out_step};
      if (product.out_first < product.out_last) work(product, i);
    }
  }

 private:
  std::int64_t groups_, last_tiles_, size_, ranges_, block_, blocks_;
  int count_;
};

// Memory for transformed filters whose rows hold the inputs of an output, or the outputs of an input.
struct FilterRows {
  std::int64_t row, group_step;

  FilterRows(std::int64_t rows, std::int64_t columns, int lanes) : row(columns * lanes), group_step(rows * row + kLine) {}
  SkipFilters by_output(float* data, int lanes) const { return {data, group_step, row, lanes}; }
  SkipFilters by_input(float* data, int lanes) const { return {data, group_step, lanes, row}; }
};

std::int64_t whole_vectors(std::int64_t channels, int lanes) { return (channels + lanes - 1) / lanes * lanes; }

// What both directions of a layer are made of: its kernels, the lists of winners, and how many images are worked on at a time.
struct Layer {
  const SkipKernels& kernel;
  const SkipTransforms& transform;
  const Winners in, out;
  const int groups;
  const std::int64_t chunk;

  Layer(Isa isa, const SkipShape& s, const std::uint8_t* won_in, const std::uint8_t* won_out)
      : kernel(train_kernels(isa).skip),
        transform(kernel.transforms[s.stride - 1]),
        in(won_in, s.images, s.in, kernel.lanes),
        out(won_out, s.images, s.out, kernel.lanes),
        groups(transform.groups),
        chunk(Tiles::images_at_a_time(s, kernel, groups, std::max(in.widest(), out.widest()))) {}

  Tiles tiles(const SkipShape& s, const Winners& of) const { return Tiles(s, kernel, groups, of, chunk); }
};

}  // namespace

bool valid(const SkipShape& s, const char** what) {
  const auto within = [](std::int64_t n, std::int64_t low) { return n >= low && n <= (std::int64_t{1} << 24); };
  *what = nullptr;
  if (!within(s.images, 1)) *what = "images";
  else if (!within(s.in, 1) || !within(s.out, 1) || s.in * s.out > (std::int64_t{1} << 26)) *what = "channels";
  else if (!within(s.padding, 0) || s.padding > 2) *what = "padding";
  else if (!within(s.stride, 1) || s.stride > 2) *what = "stride";
  else if (!within(s.height, 1) || !within(s.width, 1) || s.height + 2 * s.padding < 3 || s.width + 2 * s.padding < 3)
    *what = "size";
  else if (s.height * s.width > (std::int64_t{1} << 24) || s.height * s.width * std::max(s.in, s.out) > (std::int64_t{1} << 28))
    *what = "size";
  return *what == nullptr;
}

void skip_forward(Isa isa, Team& team, Scratch& scratch, const SkipShape& s, const float* x, const std::uint8_t* won_in,
                  const float* w, const std::uint8_t* won_out, float* z, float* means, float* squares) {
  const Layer layer(isa, s, won_in, won_out);
  Tiles v = layer.tiles(s, layer.in), m = layer.tiles(s, layer.out);
  const FilterRows rows(s.out, whole_vectors(s.in, layer.kernel.lanes), layer.kernel.lanes);
  float* const data = scratch.take(layer.groups * rows.group_step + v.floats() + m.floats());
  const SkipFilters u = rows.by_output(data, layer.kernel.lanes);
  v.place_at(data + layer.groups * rows.group_step);
  m.place_at(data + layer.groups * rows.group_step + v.floats());
  team.run(static_cast<int>(s.out), [&](int o, int) { layer.transform.filters(s, w, o, u); });
  const Parts parts(layer.transform, s.out, rows.row, layer.chunk, false);
  const std::int64_t pixels = s.height * s.width * layer.in.capacity();
  const std::int64_t results = s.out_height() * s.out_width() * layer.out.capacity();
  for (std::int64_t first = 0; first < s.images; first += layer.chunk) {
    const std::int64_t images = std::min(layer.chunk, s.images - first);
    team.run(static_cast<int>(images),
             [&](int i, int) { layer.transform.input_tiles(s, x + (first + i) * pixels, layer.in.pitch(first + i), v.of(i)); });
    team.run(parts.count(), [&](int part, int) {
      const std::int64_t g = parts.group(part);
      parts.each_image(part, s, layer.in, layer.out, v.place_step(), rows.row, first, images,
                       [&](const SkipProduct& product, std::int64_t i) {
                         layer.kernel.multiply(product, v.of(g, i), u.data + g * u.group_step, m.of(g, i));
                       });
    });
    team.run(static_cast<int>(images), [&](int i, int) {
      const std::int64_t image = first + i;
      float* const own = z + image * results;
      layer.transform.output_tiles(s, m.of(i), own, layer.out.pitch(image));
      skip_moments(isa, layer.out, image, s.out_height() * s.out_width(), own, means + image * s.out, squares + image * s.out);
    });
  }
}

void skip_backward(Isa isa, Team& team, Scratch& scratch, const SkipShape& s, const float* x, const std::uint8_t* won_in,
                   const float* w, const std::uint8_t* won_out, const SkipGradient& gradient, float* dx, float* dw) {
  const Layer layer(isa, s, won_in, won_out);
  Tiles v = layer.tiles(s, layer.in), d = layer.tiles(s, layer.out);
  const std::int64_t padded = whole_vectors(s.in, layer.kernel.lanes);
  const FilterRows of_outputs(s.out, padded, layer.kernel.lanes), of_inputs(padded, s.out, layer.kernel.lanes);
  const std::int64_t pixels = s.out_height() * s.out_width(), own = pixels * layer.out.widest();
  float* const data =
      scratch.take(layer.groups * (of_outputs.group_step + of_inputs.group_step) + v.floats() + d.floats() + team.threads() * own);
  const SkipFilters du = of_outputs.by_output(data, layer.kernel.lanes);
  const SkipFilters u = of_inputs.by_input(du.data + layer.groups * du.group_step, layer.kernel.lanes);
  v.place_at(u.data + layer.groups * u.group_step);
  d.place_at(u.data + layer.groups * u.group_step + v.floats());
  float* const dz = u.data + layer.groups * u.group_step + v.floats() + d.floats();
  team.run(layer.groups, [&](int g, int) { std::fill_n(du.data + g * du.group_step, du.group_step, 0.0f); });
  if (dx) team.run(static_cast<int>(s.out), [&](int o, int) { layer.transform.filters(s, w, o, u); });
  const Parts by_output(layer.transform, s.out, of_outputs.row, layer.chunk, true),
      by_input(layer.transform, s.in, of_inputs.row, layer.chunk, false);
  const std::int64_t map = s.height * s.width * layer.in.capacity();
  for (std::int64_t first = 0; first < s.images; first += layer.chunk) {
    const std::int64_t images = std::min(layer.chunk, s.images - first);
    team.run(static_cast<int>(images), [&](int i, int member) {
      const std::int64_t image = first + i;
      layer.transform.input_tiles(s, x + image * map, layer.in.pitch(image), v.of(i));
      skip_norm_gradient(isa, layer.out, image, pixels, gradient, dz + member * own);
      layer.transform.gradient_tiles(s, dz + member * own, layer.out.pitch(image), d.of(i));
    });
    team.run(by_output.count(), [&](int part, int) {
      const std::int64_t g = by_output.group(part);
      by_output.each_image(part, s, layer.in, layer.out, v.place_step(), of_outputs.row, first, images,
                           [&](const SkipProduct& product, std::int64_t i) {
                             layer.kernel.accumulate(product, v.of(g, i), d.of(g, i), du.data + g * du.group_step);
                           });
    });
    if (!dx) continue;
    team.run(by_input.count(), [&](int part, int) {  // the tiles of the input are done with
      const std::int64_t g = by_input.group(part);
      by_input.each_image(part, s, layer.out, layer.in, v.place_step(), of_inputs.row, first, images,
                          [&](const SkipProduct& product, std::int64_t i) {
                            layer.kernel.multiply(product, d.of(g, i), u.data + g * u.group_step, v.of(g, i));
                          });
    });
    team.run(static_cast<int>(images),
             [&](int i, int) { layer.transform.add_input_tiles(s, v.of(i), dx + (first + i) * map, layer.in.pitch(first + i)); });
  }
  team.run(static_cast<int>(s.out), [&](int o, int) { layer.transform.filter_gradient(s, du, o, dw); });
}

}  // namespace penstock
