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
      find_pieces();
      lines *= std::int64_t{fetch.taps} * piece_count_ * kPickLines;
    } else if (fetch.run_lines > 0) {
      lines *= fetch.run_lines;
    }
    lines += std::int64_t{later.count} * later.lines;
    const std::int64_t share = (lines + steps - 1) / steps;
    share_ = share < kTileLines ? static_cast<int>(share) : kTileLines;
  }

  // The lines of one tile.
  int fill() {
    int count = 0;
    if (fetch_.run_lines > 0) {
      while (row_ < fetch_.rows && count < share_) count = add_run(count);
    } else if (fetch_.pieces == nullptr) {
      count = fetch_.rows - row_ < share_ ? fetch_.rows - row_ : share_;
      add_lines(0, count, fetch_.from + std::ptrdiff_t{row_} * kLineFloats);
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

  // Pieces of neighbouring vectors often lie in the same lines. They are compared here, once for all rows.
  void find_pieces() {
    for (int n = 0; n < fetch_.piece_count && n < kMostPieces; ++n) {
      const LanesPiece& piece = fetch_.pieces[n];
      if (n > 0 && piece.from / kLineFloats == fetch_.pieces[n - 1].from / kLineFloats) continue;
      from_[piece_count_] = fetch_.from + piece.from;
      step_[piece_count_++] = piece.step;
    }
  }

  int add_row(int count) {
    const std::ptrdiff_t row = std::ptrdiff_t{tap_} * fetch_.tap_rows + fetch_.list[row_] - fetch_.in_base;
    const float** to = lines_ + count;
    for (int n = 0; n < piece_count_; ++n) {
      const float* const from = from_[n] + row * step_[n];
      for (int line = 0; line < kPickLines; ++line) *to++ = from + line * kLineFloats;
    }
    if (++row_ == fetch_.rows) {
      row_ = 0;
      ++tap_;
    }
    return count + piece_count_ * kPickLines;
  }

  void add_lines(int count, int n, const float* from) {
    for (int i = 0; i < n; ++i) lines_[count + i] = from + i * kLineFloats;
  }

  int add_run(int count) {
    const int n = fetch_.run_lines - run_line_ < share_ - count ? fetch_.run_lines - run_line_ : share_ - count;
    add_lines(count, n, fetch_.from + fetch_.list[row_] * fetch_.run_step + run_line_ * kLineFloats);
    run_line_ += n;
    if (run_line_ == fetch_.run_lines) {
      run_line_ = 0;
      ++row_;
    }
    return count + n;
  }

  int add_later(int count) {
    const int n = later_.lines - line_ < share_ - count ? later_.lines - line_ : share_ - count;
    add_lines(count, n, *later_.rows + line_ * kLineFloats);
    line_ += n;
    if (line_ == later_.lines) {
      line_ = 0;
      ++later_.rows;
      --later_.count;
    }
    return count + n;
  }

  const LanesFetch& fetch_;
  LaterRows later_;
  int share_, tap_ = 0, row_ = 0, run_line_ = 0, line_ = 0;
  int piece_count_ = 0;  // of those in lines of their own
  const float* from_[kMostPieces];
  std::ptrdiff_t step_[kMostPieces];
  const float* lines_[kTileLines + kMostPieces * kPickLines];
};

}  // namespace PENSTOCK_ISA
}  // namespace penstock
