// Depthwise convolution: channels in the lanes, taps two by two.

static void add_row(const std::int8_t* __restrict row, int count, std::int32_t value, std::uint32_t* __restrict totals) {
  for (int i = 0; i < count; ++i) totals[i] += static_cast<std::uint32_t>(value * row[i]);
}

// sums[i] = over the listed rows: row[i]. Words are summed for as long as they hold the sums.
static void sum_rows(const std::int16_t* rows, std::ptrdiff_t pitch, const std::int32_t* list, int count, int first, int columns,
                     int most, std::int32_t* sums) {
  constexpr int kWords = 2 * kLanes;
  static_assert(kWords <= kInt8RowSlack);
  const int together = 32767 / most;
  for (int i = 0; i < columns; i += kWords) {
    std::int32_t total[kWords] = {};
    for (int p0 = 0; p0 < count; p0 += together) {
      Half words = Half{};
      for (int p = p0; p < std::min(count, p0 + together); ++p) words += load<Half>(rows + (list[p] - first) * pitch + i);
      for (int k = 0; k < kWords; ++k) total[k] += words[k];
    }
    std::memcpy(sums + i, total, sizeof total);
  }
}

// Pixels of the input with the channels of the output's list: the input itself where the lists are equal.
static const std::uint8_t* align_channels(const Int8Run& run, std::int64_t start, std::int64_t end, std::uint8_t* room) {
  const Int8Task& task = run.task;
  const Int8Shape& s = run.plan.shape;
  const int in_bytes = pixel_bytes(s.in_channels, task.in_count), out_bytes = pixel_bytes(s.out_channels, task.out_count);
  const std::uint8_t* from = task.input + start * in_bytes;
  if (task.in_count == task.out_count && std::equal(task.in_list, task.in_list + task.in_count, task.out_list)) return from;
  const std::int32_t* const places = reinterpret_cast<const std::int32_t*>(run.scratch + run.lay.places);
  for (std::int64_t i = 0; i < end - start; ++i, from += in_bytes)
    for (int p = 0; p < task.out_count; ++p) room[i * out_bytes + p] = places[p] < 0 ? std::uint8_t{0} : from[places[p]];
  return room;
}

#if !PENSTOCK_DEPTHWISE_QUADS
// Weights of the active outputs, [vector][pair of taps][2 words a lane, see pair_place]; zeros where the input is skipped.
static void gather_depthwise(const Int8Run& run, std::uint8_t* to) {
  const Int8Plan& plan = run.plan;
  const int taps = plan.taps, pairs = (taps + 1) / 2, count = run.task.out_count;
  std::int16_t* const words = reinterpret_cast<std::int16_t*>(to);
  const std::int32_t* const places = reinterpret_cast<const std::int32_t*>(run.scratch + run.lay.places);
  std::memset(words, 0, static_cast<std::size_t>((count + kLanes - 1) / kLanes * pairs) * kVectorBytes);
  for (int p = 0; p < count; ++p) {
    if (places[p] < 0) continue;
    const std::int8_t* const from = plan.weights_of(run.task.out_list[p]);
    std::int16_t* const target = words + static_cast<std::int64_t>(p / kLanes) * pairs * kLanes * 2;
    for (int t = 0; t < taps; ++t) target[t / 2 * 2 * kLanes + pair_place(p % kLanes, t % 2)] = from[t * plan.row];
  }
}

static void depthwise(const Int8Run& run, int unit, int member) {
  const Int8Plan& plan = run.plan;
  const Int8Shape& s = plan.shape;
  const Int8Task& task = run.task;
  const int bytes = pixel_bytes(s.out_channels, task.out_count);
  const int y0 = unit * run.lay.unit_rows, y1 = std::min(s.output.height, y0 + run.lay.unit_rows);
  std::uint8_t* const mine = run.mine(member);
  const std::int64_t first_row = static_cast<std::int64_t>(y0) * s.stride_h - s.pad_h;
  const std::int64_t last_row =
      static_cast<std::int64_t>(y1 - 1) * s.stride_h - s.pad_h + static_cast<std::int64_t>(s.kernel_h - 1) * s.dilation_h;
  const std::int64_t start = s.input.origin() + first_row * s.input.pitch() - s.pad_w;
  const std::int64_t end = s.input.origin() + last_row * s.input.pitch() + s.input.width + s.pad_w;
  const std::uint8_t* const input = align_channels(run, start, end, mine + run.lay.pixels);

  const int taps = plan.taps, pairs = (taps + 1) / 2;
  std::ptrdiff_t offsets[kMostTaps + 1];
  for (int t = 0; t < taps; ++t)
    offsets[t] =
        (static_cast<std::int64_t>(t / s.kernel_w) * s.dilation_h * s.input.pitch() + t % s.kernel_w * s.dilation_w) * bytes;
  offsets[taps] = offsets[taps - 1];  // beside a weight of 0
  const Int8Finish f = finish_of(run, member);
  const std::uint8_t* const weights = run.weights();
  constexpr int kPixels = 4;
  alignas(64) std::int32_t sums[kPixels * kLanes];
  for (int v = 0; v < run.lay.vectors; ++v) {
    const std::uint8_t* const w = weights + static_cast<std::int64_t>(v) * pairs * kVectorBytes;
    for (int y = y0; y < y1; ++y)
      for (int x = 0; x < s.output.width; x += kPixels) {
        const int count = std::min(kPixels, s.output.width - x);
        const std::uint8_t* from[kPixels];
        std::uint8_t* targets[kPixels];
        Int acc[kPixels] = {};
        for (int k = 0; k < kPixels; ++k) {
          const int column = x + std::min(k, count - 1);
          from[k] =
              input +
              (static_cast<std::int64_t>(y - y0) * s.stride_h * s.input.pitch() + static_cast<std::int64_t>(column) * s.stride_w) *
                  bytes +
              v * kLanes;
          targets[k] = task.output + (s.output.origin() + static_cast<std::int64_t>(y) * s.output.pitch() + column) * bytes;
        }
        for (int t = 0; t < pairs; ++t) {
          const Int pair = load<Int>(w + t * kVectorBytes);
#pragma GCC unroll 4
          for (int k = 0; k < kPixels; ++k)
            acc[k] = dot_pairs(acc[k], (Int)zip_codes(from[k] + offsets[2 * t], from[k] + offsets[2 * t + 1]), pair);
        }
        for (int k = 0; k < kPixels; ++k) store(sums + k * kLanes, acc[k]);
        finish_vector(f, v, sums, kLanes, count, targets, v * kLanes, bytes - v * kLanes);
      }
  }
}
#endif
