// Fetching ahead into L2 while a panel is multiplied: the weights of the next panel, then what the next layer's gate reads.
//
// Each register tile fetches an even share. It does so a few lines at a time between its products: a burst would fill all line buffers,
// and the product's own loads would wait until memory has answered.
namespace penstock {
namespace PENSTOCK_ISA {

constexpr int kLineFloats = 16;  // of a cache line
constexpr int kTileLines = 128;  // lines that one tile fetches, at most
constexpr int kMostPieces = 64;  // pieces of a panel, at most: one for every lane

class LanesAhead {
 public:
  LanesAhead(const LanesFetch& fetch, const LaterRows& later, int steps) : fetch_(fetch), later_(later) {
    std::int64_t lines = fetch.rows;
    if (fetch.pieces != nullptr) {
      int row_lines = 0;
      for (int n = 0; n < fetch.piece_count; ++n) row_lines += is_new(n) ? lines_of(n) : 0;
      lines *= std::int64_t{fetch.taps} * row_lines;
    }
    lines += std::int64_t{later.count} * later.lines;
    const std::int64_t share = (lines + steps - 1) / steps;
    share_ = share < kTileLines ? static_cast<int>(share) : kTileLines;
  }

  // The lines of one tile.
  int fill() {
    int count = 0;
    if (fetch_.pieces == nullptr) {
      count = fetch_.rows - row_ < share_ ? fetch_.rows - row_ : share_;
      const float* const from = fetch_.from + std::ptrdiff_t{row_} * kLineFloats;
      for (int i = 0; i < count; ++i) lines_[i] = from + i * kLineFloats;
      row_ += count;
    } else {
      while (fetch_.rows > 0 && tap_ < fetch_.taps && count < share_) count = add_row(count);
    }
    while (later_.count > 0 && count < share_) count = add_later(count);
    return count;
  }
  const float* const* lines() const { return lines_; }

 private:
  static constexpr int kPickLines = (kPickSpan + kLineFloats - 1) / kLineFloats;

  // Pieces of neighbouring vectors often lie in the same lines.
  bool is_new(int n) const { return n == 0 || fetch_.pieces[n].from / kLineFloats != fetch_.pieces[n - 1].from / kLineFloats; }

  // What lies behind a row of one vector belongs to the next input.
  int lines_of(int n) const { return fetch_.pieces[n].step <= kLineFloats ? 1 : kPickLines; }

  int add_row(int count) {
    const std::ptrdiff_t row = std::ptrdiff_t{tap_} * fetch_.tap_rows + fetch_.list[row_] - fetch_.in_base;
    for (int n = 0; n < fetch_.piece_count && n < kMostPieces; ++n) {
      if (!is_new(n)) continue;
      const float* const from = fetch_.from + fetch_.pieces[n].from + row * fetch_.pieces[n].step;
      for (int line = 0; line < lines_of(n); ++line) lines_[count++] = from + line * kLineFloats;
    }
    if (++row_ == fetch_.rows) {
      row_ = 0;
      ++tap_;
    }
    return count;
  }

  int add_later(int count) {
    const float* const row = *later_.rows;
    for (; line_ < later_.lines && count < share_; ++line_) lines_[count++] = row + line_ * kLineFloats;
    if (line_ == later_.lines) {
      line_ = 0;
      ++later_.rows;
      --later_.count;
    }
    return count;
  }

  const LanesFetch& fetch_;
  LaterRows later_;
  int share_, tap_ = 0, row_ = 0, line_ = 0;
  const float* lines_[kTileLines + kMostPieces * kPickLines];
};

}  // namespace PENSTOCK_ISA
}  // namespace penstock
