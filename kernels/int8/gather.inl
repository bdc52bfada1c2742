// The weights of an image's active channels, brought together: compacted by a byte shuffle for each 16 outputs, then
// interleaved by pairs (words) or quads (bytes) of inputs.

// One row of weights without the outputs that are skipped; zeros follow up to a whole vector.
PENSTOCK_INLINE void compact(const std::int8_t* row, const std::uint8_t* masks, const std::int32_t* starts, int blocks, int count,
                             std::int8_t* to) {
  for (int b = 0; b < blocks; ++b) store(to + starts[b], shuffle(row + 16 * b, masks + 16 * b));
  store(to + count, Byte16{});
}

#include "int8/filters.inl"

static void gather(const Int8Run& run, int number, int begin, int end, bool with_transform, std::uint8_t* rows, std::uint8_t* to) {
  const Int8Plan& plan = run.plan;
  const Int8Group& group = run.groups()[number];
  const int taps = plan.taps, blocks = plan.row / 16;
  const std::uint8_t* const masks =
      run.scratch + run.lay.masks + static_cast<std::size_t>(number) * static_cast<std::size_t>(plan.row);
  const std::int32_t* const starts = reinterpret_cast<const std::int32_t*>(run.scratch + run.lay.starts) + number * blocks;
  const std::int8_t* const weights = plan.weights_of(number);
  const int inputs = plan.image_rows ? plan.inputs : group.in_count;
  const int size = with_transform ? 2 : kGroup;
  const int groups = (inputs + size - 1) / size;
  const Panels panels(group.out_count, kLanes, kMostVectors);
  const std::ptrdiff_t pitch = plan.row + 16 + 64;
  const int first_of_group = number * (plan.shape.in_channels / plan.shape.groups);
  to += group.weights;
  for (int q = begin; q < end; ++q) {
    for (int r = 0; r < size; ++r) {
      const int input = size * q + r;
      std::int8_t* row = reinterpret_cast<std::int8_t*>(rows) + r * taps * pitch;
      if (input >= inputs) {
        std::memset(row, 0, static_cast<std::size_t>(taps * pitch));
        continue;
      }
      const int channel = plan.image_rows ? input : run.task.in_list[group.in_begin + input] - first_of_group;
      const std::int8_t* from = weights + static_cast<std::int64_t>(channel) * taps * plan.row;
      if (input + size < inputs && !plan.image_rows) {
        const std::int8_t* const next =
            weights + static_cast<std::int64_t>(run.task.in_list[group.in_begin + input + size] - first_of_group) * taps * plan.row;
        for (std::int64_t line = 0; line < static_cast<std::int64_t>(taps) * plan.row; line += 64) fetch_near(next + line);
      }
      for (int t = 0; t < taps; ++t, from += plan.row, row += pitch) compact(from, masks, starts, blocks, group.out_count, row);
    }
    const std::int8_t* const a = reinterpret_cast<const std::int8_t*>(rows);
    const std::ptrdiff_t next = taps * pitch;
    for (int p = 0; p < panels.n; ++p) {
      const int v0 = panels.first(p), vectors = panels.first(p + 1) - v0;
      // From one position to the next.
      const std::ptrdiff_t step = with_transform ? filter_position_bytes(groups, vectors, kLanes)
                                                 : static_cast<std::ptrdiff_t>(groups) * vectors * kGroupBytes;
      for (int j = 0; j < vectors; ++j) {
        const std::int8_t* const from = a + (v0 + j) * kLanes;
        const std::ptrdiff_t panel =
            with_transform ? panel_filters(v0, p, groups) : static_cast<std::ptrdiff_t>(v0) * taps * groups * kGroupBytes;
        std::uint8_t* const target =
            to + panel + (static_cast<std::ptrdiff_t>(q) * vectors + j) * (with_transform ? kVectorBytes : kGroupBytes);
        if (with_transform) {
          Half half[3][6];
#pragma GCC unroll 3
          for (int x = 0; x < 3; ++x) {
            Half g[3];
#pragma GCC unroll 3
            for (int y = 0; y < 3; ++y) g[y] = zip_weights(from + (y * 3 + x) * pitch, from + (y * 3 + x) * pitch + next);
            transform_filter(g, half[x]);
          }
#pragma GCC unroll 6
          for (int y = 0; y < 6; ++y) {
            const Half g[3] = {half[0][y], half[1][y], half[2][y]};
            Half t[6];
            transform_filter(g, t);
#pragma GCC unroll 6
            for (int x = 0; x < 6; ++x) store(target + (y * 6 + x) * step, t[x]);
          }
          continue;
        }
        for (int t = 0; t < taps; ++t) {
          const std::int8_t* const row = from + t * pitch;
#if defined(PENSTOCK_VEC_MATRIX)
          // 8 inputs of output 0, of output 1, ...
          const Int low = zip_quads(row, row + next, row + 2 * next, row + 3 * next);
          const Int high = zip_quads(row + 4 * next, row + 5 * next, row + 6 * next, row + 7 * next);
          store(target + t * step, vzip1q_s32((int32x4_t)low, (int32x4_t)high));
          store(target + t * step + 16, vzip2q_s32((int32x4_t)low, (int32x4_t)high));
#elif defined(PENSTOCK_VEC_AVX512) || defined(PENSTOCK_VEC_DOT)
          store(target + t * step, zip_quads(row, row + next, row + 2 * next, row + 3 * next));
#else
          store(target + t * step, zip_weights(row, row + next));
#endif
        }
      }
    }
  }
}
