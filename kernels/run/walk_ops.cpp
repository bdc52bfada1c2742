// The operations besides convolution, over the planes that are stored.
#include "run/walk.h"

namespace penstock {

void Runtime::Walk::fill_plane(float* plane, Planes shape, float value) {
  zero_padding(plane, shape);
  for (int y = 0; y < shape.height; ++y) {
    float* row = plane + shape.origin() + static_cast<std::ptrdiff_t>(y) * shape.pitch();
    std::fill(row, row + shape.width, value);
  }
}

void Runtime::Walk::pool(const Op& op) {
  const Tensor &from = tensor(op.in), &to = tensor(op.out);
  const Live& in = live(op.in);
  Live& out = live(op.out);
  keep_list(op);
  each(in.count, in.count * from.step(), [&](int p, int) {
    kernels_.pool(in.data + p * from.step(), from.shape, out.data + p * to.step(), to.shape, op.window, op.pool);
    summarise_plane(op.out, p);
  });
  note_summaries(op.out);
}

void Runtime::Walk::adaptive_pool(const Op& op) {
  const Tensor &from = tensor(op.in), &to = tensor(op.out);
  const Live& in = live(op.in);
  Live& out = live(op.out);
  keep_list(op);
  const std::int64_t h = from.shape.height, w = from.shape.width;
  const std::int64_t rows = to.shape.height, columns = to.shape.width;
  each(in.count, in.count * from.step(), [&](int p, int) {
    float* plane = out.data + p * to.step();
    if (to.layout == Layout::planes) zero_padding(plane, to.shape);
    const std::ptrdiff_t origin = to.layout == Layout::planes ? to.shape.origin() : 0;
    for (std::int64_t y = 0; y < rows; ++y)
      for (std::int64_t x = 0; x < columns; ++x)
        plane[origin + y * to.shape.pitch() + x] =
            kernels_.reduce_window(in.data + p * from.step(), from.shape, static_cast<int>(y * h / rows),
                                   static_cast<int>(((y + 1) * h + rows - 1) / rows), static_cast<int>(x * w / columns),
                                   static_cast<int>(((x + 1) * w + columns - 1) / columns), op.pool);
  });
}

void Runtime::Walk::copy_plane(int from, int plane, int to, int to_plane) {
  const std::int64_t step = tensor(to).step();
  std::memcpy(live(to).data + to_plane * step, live(from).data + plane * step, sizeof(float) * static_cast<std::size_t>(step));
  const int kind = runtime_.wanted_summaries_[static_cast<std::size_t>(to)];
  if (kind < 0 || context_.summary_kind[static_cast<std::size_t>(from)] != kind) return summarise_plane(to, to_plane);
  summary(to, to_plane) = summary(from, plane);
}

void Runtime::Walk::add(const Op& op) {
  const Tensor &a = tensor(op.in), &b = tensor(op.in2), &to = tensor(op.out);
  const Live &in = live(op.in), &in2 = live(op.in2);
  Live& out = live(op.out);
  std::int32_t* list = own_list(op.out);
  // Where each plane of the union comes from: its plane in either summand, or -1.
  std::int32_t *first = context_.positions.data(), *second = context_.merged.data();
  // Without branches: whether a channel is in a list looks random to the branch predictor.
  char* const in_first = context_.fresh.data();
  char* const in_second = context_.alone.data();
  std::memset(in_first, 0, static_cast<std::size_t>(to.channels));
  std::memset(in_second, 0, static_cast<std::size_t>(to.channels));
  for (int p = 0; p < in.count; ++p) in_first[in.list[p]] = 1;
  for (int q = 0; q < in2.count; ++q) in_second[in2.list[q]] = 1;
  int n = 0;
  for (int c = 0, p = 0, q = 0; c < to.channels; ++c) {
    list[n] = c;
    first[n] = in_first[c] ? p : -1;
    second[n] = in_second[c] ? q : -1;
    n += in_first[c] | in_second[c];
    p += in_first[c];
    q += in_second[c];
  }
  out.list = list;
  out.count = n;
  // Whether a plane that only one summand has can be copied as it is, together with its summary.
  const auto stays = [&](int t, const Live& other) {
    const bool same =
        op.function == Function::none || (op.function == Function::relu && runtime_.never_negative_[static_cast<std::size_t>(t)]);
    return same && other.fill == nullptr && to.layout == Layout::planes && tensor(t).shape.halo == to.shape.halo;
  };
  const bool first_stays = stays(op.in, in2), second_stays = stays(op.in2, in);
  // What a summand holds in a channel that it does not store.
  const auto constant = [&](const Live& summand, int p) { return summand.fill ? summand.fill[list[p]] : 0.0f; };
  each(n, n * to.step(), [&](int p, int) {
    float* plane = out.data + p * to.step();
    if (second[p] < 0 && first_stays) return copy_plane(op.in, first[p], op.out, p);
    if (first[p] < 0 && second_stays) return copy_plane(op.in2, second[p], op.out, p);
    const float* x = first[p] < 0 ? nullptr : in.data + first[p] * a.step();
    const float* y = second[p] < 0 ? nullptr : in2.data + second[p] * b.step();
    if (to.layout == Layout::vector) {
      const float sum = (x ? *x : constant(in, p)) + (y ? *y : constant(in2, p));
      return kernels_.apply(&sum, 1, op.function, op.slope, plane);
    }
    if (x && y) kernels_.add(x, a.shape, y, b.shape, op.function, op.slope, plane, to.shape);
    else kernels_.affine(x ? x : y, x ? a.shape : b.shape, 1.0f, constant(x ? in2 : in, p), op.function, op.slope, plane, to.shape);
    summarise_plane(op.out, p);
  });
  note_summaries(op.out);
  if (to.filled) fill_sum(op);
}

void Runtime::Walk::concat(const Op& op) {
  const Tensor& to = tensor(op.out);
  join_lists(op);
  int first = 0;
  for (int input : op.inputs) {
    const Tensor& from = tensor(input);
    const Live& in = live(input);
    float* const base = live(op.out).data + first * to.step();
    if (to.layout == Layout::vector) {
      std::copy(in.data, in.data + in.count, base);
    } else {
      each(in.count, in.count * to.step(), [&](int p, int) {
        const float* plane = in.data + p * from.step();
        if (from.shape.halo == to.shape.halo)
          std::memcpy(base + p * to.step(), plane, sizeof(float) * static_cast<std::size_t>(to.step()));
        else kernels_.affine(plane, from.shape, 1.0f, 0.0f, Function::none, 0.0f, base + p * to.step(), to.shape);
      });
    }
    first += in.count;
  }
}

void Runtime::Walk::affine(const Op& op) {
  const Tensor &from = tensor(op.in), &to = tensor(op.out);
  const Live& in = live(op.in);
  Live& out = live(op.out);
  if (op.passes_channels() || from.filled) {
    keep_list(op);
    if (from.filled) fill_affine(op);
    const auto scale = [&](int p) { return op.scale ? op.scale[in.list[p]] : 1.0f; };
    const auto shift = [&](int p) { return op.shift ? op.shift[in.list[p]] : 0.0f; };
    if (to.layout == Layout::vector) {
      for (int p = 0; p < in.count; ++p) out.data[p] = in.data[p] * scale(p) + shift(p);
      return kernels_.apply(out.data, in.count, op.function, op.slope, out.data);
    }
    each(in.count, in.count * to.step(), [&](int p, int) {
      kernels_.affine(in.data + p * from.step(), from.shape, scale(p), shift(p), op.function, op.slope, out.data + p * to.step(),
                      to.shape);
    });
    return;
  }
  make_dense(op.out);
  std::int32_t* const places = context_.positions.data();  // of each channel among the input's planes, or -1
  for (int c = 0, p = 0; c < to.channels; ++c) places[c] = p < in.count && in.list[p] == c ? p++ : -1;
  each(to.channels, to.channels * to.step(), [&](int c, int) {
    const float scale = op.scale ? op.scale[c] : 1.0f, shift = op.shift ? op.shift[c] : 0.0f;
    float* plane = out.data + c * to.step();
    if (to.layout == Layout::planes && places[c] >= 0)
      return kernels_.affine(in.data + places[c] * from.step(), from.shape, scale, shift, op.function, op.slope, plane, to.shape);
    float value = shift;
    if (places[c] >= 0) value += in.data[places[c]] * scale;
    kernels_.apply(&value, 1, op.function, op.slope, &value);
    if (to.layout == Layout::vector) *plane = value;
    else fill_plane(plane, to.shape, value);
  });
}

// The list of a product, and the factor of each of its channels; the places of context_.positions say where they are in the
// input. False: a factor is not finite.
bool Runtime::Walk::take_factors(const Op& op, float* factors) {
  const Tensor &from = tensor(op.in), &to = tensor(op.out);
  const Live &in = live(op.in), &by = live(op.in2);
  float* const by_channel = context_.bias.data();
  char* const nonzero = context_.fresh.data();
  std::memset(nonzero, by.fill != nullptr, static_cast<std::size_t>(to.channels));
  for (int c = 0; c < to.channels; ++c) by_channel[c] = by.fill ? by.fill[c] : 0.0f;
  for (int q = 0; q < by.count; ++q) {
    by_channel[by.list[q]] = by.data[q];
    nonzero[by.list[q]] = 1;
  }
  // Zero times infinity is NaN, but planes of zeros are not stored and would be missed: such an image is refused.
  if (!kernels_.all_finite(by_channel, to.channels)) return false;
  std::int32_t* const list = own_list(op.out);
  std::int32_t* const places = context_.positions.data();
  // A product is zero where either is: only channels of both lists remain.
  int n = 0;
  for (int p = 0; p < in.count; ++p) {
    if (!nonzero[in.list[p]]) continue;
    list[n] = in.list[p];
    places[n] = p;
    factors[n++] = by_channel[in.list[p]];
  }
  if (from.filled) fill_product(op, by_channel);
  live(op.out).list = list;
  live(op.out).count = n;
  return true;
}

bool Runtime::Walk::scale(const Op& op) {
  float* const factors = context_.saliency.data();
  if (!take_factors(op, factors)) return false;
  const Tensor &from = tensor(op.in), &to = tensor(op.out);
  const Live &in = live(op.in), &out = live(op.out);
  const std::int32_t* const places = context_.positions.data();
  const int n = out.count;
  const auto times = [&](int p, int) {
    const float* plane = in.data + places[p] * from.step();
    if (to.layout == Layout::vector) out.data[p] = *plane * factors[p];
    else kernels_.affine(plane, from.shape, factors[p], 0.0f, Function::none, 0.0f, out.data + p * to.step(), to.shape);
  };
  // In place, a plane is written over one that may not have been read yet, so the planes are taken in order.
  if (n < in.count && out.data == in.data)
    for (int p = 0; p < n; ++p) times(p, 0);
  else each(n, n * to.step(), times);
  return true;
}

void Runtime::Walk::linear(const Op& op) {
  const Tensor &from = tensor(op.in), &to = tensor(op.out);
  const Live& in = live(op.in);
  Live& out = live(op.out);
  make_dense(op.out);
  const int area = from.shape.height * from.shape.width;
  const std::int64_t features = static_cast<std::int64_t>(from.channels) * area;
  const Row row = with_constants(in, from.channels, in.data);
  note(op, std::int64_t{in.fill ? from.channels : in.count} * area * to.channels, in.count, to.channels);
  float* const features_at = scratch(op);
  if (from.layout == Layout::planes)
    for (int p = 0; p < in.count; ++p)
      kernels_.export_plane(in.data + p * from.step(), from.shape, features_at + static_cast<std::int64_t>(p) * area);
  each_block(to.channels, static_cast<std::int64_t>(in.count) * area * to.channels / 2, [&](int begin, int end) {
    if (from.layout == Layout::vector)
      kernels_.combine_rows(row.x, row.list, row.count, op.weights, op.bias, begin, end, to.channels, out.data);
    else kernels_.dot_blocks(features_at, in.list, in.count, area, op.weights, op.bias, begin, end, features, out.data);
    if (op.function != Function::none) kernels_.apply(out.data + begin, end - begin, op.function, op.slope, out.data + begin);
  });
}

void Runtime::Walk::pack(const Op& op) {
  const Tensor &from = tensor(op.in), &to = tensor(op.out);
  const Live& in = live(op.in);
  Live& out = live(op.out);
  keep_list(op);
  for (int p = 0; p < in.count; ++p) {
    const float* plane = in.data + p * from.step();
    float* target = out.data + p * to.step();
    if (from.layout == Layout::planes && to.layout == Layout::planes) {
      kernels_.affine(plane, from.shape, 1.0f, 0.0f, Function::none, 0.0f, target, to.shape);
      continue;
    }
    const float value = from.layout == Layout::planes ? plane[from.shape.origin()] : *plane;
    if (to.layout == Layout::planes) fill_plane(target, to.shape, value);
    else *target = value;
  }
}

void Runtime::Walk::channel_norm(const Op& op) {
  const Tensor &from = tensor(op.in), &to = tensor(op.out);
  const Live& in = live(op.in);
  Live& out = live(op.out);
  make_dense(op.out);
  // The statistics run over all channels, so a skipped one counts as zeros: the input is spread out first.
  const float* base = in.data;
  Planes shape = from.shape;
  if (in.count < from.channels) {
    for (int c = 0, p = 0; c < to.channels; ++c) {
      float* plane = out.data + c * to.step();
      if (p < in.count && in.list[p] == c)
        kernels_.affine(in.data + p++ * from.step(), from.shape, 1.0f, 0.0f, Function::none, 0.0f, plane, to.shape);
      else fill_plane(plane, to.shape, 0.0f);
    }
    base = out.data;
    shape = to.shape;
  }
  for (int c = 0; c < to.channels; ++c) zero_padding(out.data + c * to.step(), to.shape);
  each(to.shape.height, to.channels * to.step(), [&](int y, int) {
    kernels_.channel_norm(base, shape, to.channels, op.scale, op.shift, op.eps, y, y + 1, out.data, to.shape);
  });
}

}  // namespace penstock
