// The weights of an image's active channels, brought together: compacted by a byte shuffle for each 16 outputs, then
// interleaved by pairs (words) or quads (bytes) of inputs.

// One row of weights without the outputs that are skipped; zeros follow up to a whole vector.
PENSTOCK_INLINE void compact(const std::int8_t* row, const std::uint8_t* masks, const std::int32_t* starts, int blocks, int count,
                             std::int8_t* to) {
  for (int b = 0; b < blocks; ++b) store(to + starts[b], shuffle(row + 16 * b, masks + 16 * b));
  store(to + count, Byte16{});
}

#include "int8/filters.inl"

// The rows of one group's weights for an image: which inputs, and how the skipped outputs are dropped from them.
struct Gathering {
  const Int8Run& run;
  const Int8Plan& plan;
  const Int8Group& group;
  int size, inputs, groups;  // inputs that are interleaved, all inputs, and how many times `size` of them
  int first_of_group;
  const std::uint8_t* masks;
  const std::int32_t* starts;
  const std::int8_t* weights;
  std::ptrdiff_t pitch;  // bytes from one compacted row to the next

  Gathering(const Int8Run& r, int number, bool with_transform, std::ptrdiff_t row_pitch)
      : run(r),
        plan(r.plan),
        group(r.groups()[number]),
        size(with_transform ? 2 : kGroup),
        inputs(plan.image_rows ? plan.inputs : group.in_count),
        groups((inputs + size - 1) / size),
        first_of_group(number * (plan.shape.in_channels / plan.shape.groups)),
        masks(r.scratch + r.lay.masks + static_cast<std::size_t>(number) * static_cast<std::size_t>(plan.row)),
        starts(reinterpret_cast<const std::int32_t*>(r.scratch + r.lay.starts) + number * (plan.row / 16)),
        weights(plan.weights_of(number)),
        pitch(row_pitch) {}

  const std::int8_t* input_rows(int input) const {
    const int channel = plan.image_rows ? input : run.task.in_list[group.in_begin + input] - first_of_group;
    return weights + static_cast<std::int64_t>(channel) * plan.taps * plan.row;
  }

  // Inputs `size * q` and following, all taps; zeros where there is no such input.
  void compact_inputs(int q, std::int8_t* rows) const {
    for (int r = 0; r < size; ++r) {
      const int input = size * q + r;
      std::int8_t* row = rows + r * plan.taps * pitch;
      if (input >= inputs) {
        std::memset(row, 0, static_cast<std::size_t>(plan.taps * pitch));
        continue;
      }
      const std::int8_t* from = input_rows(input);
      if (input + size < inputs && !plan.image_rows) {
        const std::int8_t* const next = input_rows(input + size);
        for (std::int64_t line = 0; line < static_cast<std::int64_t>(plan.taps) * plan.row; line += 64) fetch_near(next + line);
      }
      for (int t = 0; t < plan.taps; ++t, from += plan.row, row += pitch)
        compact(from, masks, starts, plan.row / 16, group.out_count, row);
    }
  }
};

// Interleaves the weights of a pair of inputs for one vector of outputs. The second input's weights lie `next` bytes after the
// first's, taps are `pitch` bytes apart. With the transform they become 36 positions, `step` bytes apart.
PENSTOCK_INLINE void pack_vector(const std::int8_t* from, std::ptrdiff_t pitch, std::ptrdiff_t next, int taps, bool with_transform,
                                 std::uint8_t* target, std::ptrdiff_t step) {
  if (with_transform) {
    // Two rows of the transform at a time, so that nine filters and what is made of them stay in registers.
    Half g[3][3], sum[3], difference[3];
#pragma GCC unroll 9
    for (int i = 0; i < 9; ++i) g[i / 3][i % 3] = zip_weights(from + i * pitch, from + i * pitch + next);
    const auto put = [&](int y, const Half* row) {
      Half t[6];
      transform_filter(row, t);
#pragma GCC unroll 6
      for (int x = 0; x < 6; ++x) store(target + (y * 6 + x) * step, t[x]);
    };
    for (int y : {0, 2}) {
      const Half outer[3] = {six_times(g[y][0]), six_times(g[y][1]), six_times(g[y][2])};
      put(y == 0 ? 0 : 5, outer);
    }
#pragma GCC unroll 3
    for (int x = 0; x < 3; ++x) {
      const Half s = g[0][x] + g[2][x];
      sum[x] = s + g[1][x];
      difference[x] = s - g[1][x];
    }
    put(1, sum);
    put(2, difference);
#pragma GCC unroll 3
    for (int x = 0; x < 3; ++x) {
      const Half u = g[0][x] + (g[2][x] << 2), v = g[1][x] + g[1][x];
      sum[x] = u + v;
      difference[x] = u - v;
    }
    put(3, sum);
    put(4, difference);
    return;
  }
  for (int t = 0; t < taps; ++t) {
    const std::int8_t* const row = from + t * pitch;
#if defined(PENSTOCK_VEC_MATRIX)
    // 8 inputs of output 0, of output 1, ...
    const Int low = zip_quads(row, row + next, row + 2 * next, row + 3 * next);
    const Int high = zip_quads(row + 4 * next, row + 5 * next, row + 6 * next, row + 7 * next);
    store(target + t * step, vzip1q_s32((int32x4_t)low, (int32x4_t)high));
    store(target + t * step + 16, vzip2q_s32((int32x4_t)low, (int32x4_t)high));
#elif defined(PENSTOCK_VEC_VNNI) || defined(PENSTOCK_VEC_DOT)
    store(target + t * step, zip_quads(row, row + next, row + 2 * next, row + 3 * next));
#else
    store(target + t * step, zip_weights(row, row + next));
#endif
  }
}

static void gather(const Int8Run& run, int number, int begin, int end, bool with_transform, std::uint8_t* room, std::uint8_t* to) {
  const Gathering all(run, number, with_transform, compacted_pitch(run.plan.row));
  const int taps = run.plan.taps, groups = all.groups, bytes = with_transform ? kVectorBytes : kGroupBytes;
  const Panels panels(all.group.out_count, kLanes, kMostVectors);
  std::int8_t* const rows = reinterpret_cast<std::int8_t*>(room);
  to += all.group.weights;
  for (int q = begin; q < end; ++q) {
    all.compact_inputs(q, rows);
    for (int p = 0; p < panels.n; ++p) {
      const int v0 = panels.first(p), vectors = panels.first(p + 1) - v0;
      // From one position to the next.
      const std::ptrdiff_t step = with_transform ? filter_position_bytes(groups, vectors, kLanes)
                                                 : static_cast<std::ptrdiff_t>(groups) * vectors * kGroupBytes;
      const std::ptrdiff_t panel =
          with_transform ? panel_filters(v0, p, groups) : static_cast<std::ptrdiff_t>(v0) * taps * groups * kGroupBytes;
      for (int j = 0; j < vectors; ++j)
        pack_vector(rows + (v0 + j) * kLanes, all.pitch, taps * all.pitch, taps, with_transform,
                    to + panel + (static_cast<std::ptrdiff_t>(q) * vectors + j) * bytes, step);
    }
  }
}
