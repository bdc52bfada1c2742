// What a program's operations may ask of maps in pixels, of codes, and of channels that hold constants.
#include <algorithm>

#include "run/loader.h"

namespace penstock {
namespace {

// Floats of scratch for a sum, product, affine or concatenation of codes: factors, and where channels come from.
std::int64_t combination_floats(int channels) {
  return round_to_line(3 * round_to_line(channels) + 2 * static_cast<std::int64_t>(Spread::size(channels) + 63) / 4);
}

}  // namespace

// What only maps of floats in pixels ask for.
void Loader::check_pixels(Op& op) {
  const auto is_pixels = [&](int tensor) { return tensor >= 0 && at(tensor).is_pixels(); };
  if (!is_pixels(op.in) && !is_pixels(op.out)) return;
  switch (op.kind) {
    case OpKind::add:
    case OpKind::concat:
    case OpKind::affine:
    case OpKind::spread:
    case OpKind::scale: op.scratch.shared = pixel_scratch(at(op.out)).total; break;
    case OpKind::adaptive_pool: check(at(op.out).layout == Layout::vector, "pixels are pooled to a vector"); break;
    case OpKind::linear:
    case OpKind::channel_norm: check(false, "this kind of operation works on planes or vectors"); break;
    default: break;
  }
}

// What only quantised maps ask for, and the memory of their lists and factors.
void Loader::check_codes(Op& op) {
  const auto is_codes = [&](int tensor) { return tensor >= 0 && at(tensor).is_codes(); };
  if (!is_codes(op.in) && !is_codes(op.out)) return;
  const auto check_wide = [&] {
    check(at(op.out).channels > kImageChannels, "a map of codes has 5 channels or more, unless it is the image");
  };
  switch (op.kind) {
    case OpKind::add:
    case OpKind::concat:
    case OpKind::affine:
    case OpKind::scale:
      check(static_cast<int>(op.function) < kActivationCount, "function");
      check_wide();
      op.scratch.shared = combination_floats(at(op.out).channels);
      break;
    case OpKind::pool:
      check_wide();
      check(at(op.in).quantised.scale == at(op.out).quantised.scale && at(op.in).quantised.zero == at(op.out).quantised.zero,
            "pooling keeps scale and zero point");
      check(std::int64_t{op.window.kernel_h} * op.window.kernel_w <= (1 << 22), "window too large");
      break;
    case OpKind::pack:
      if (is_codes(op.out)) check_wide();
      break;
    case OpKind::adaptive_pool:
      check(at(op.out).layout == Layout::vector && op.pool == Pool::average, "codes are pooled to their average, a vector");
      break;
    case OpKind::linear:
    case OpKind::spread:
    case OpKind::channel_norm: check(false, "this kind of operation has no int8 form"); break;
    default: break;
  }
}

// Which results leave channels out, and whether those are zeros or constants. An operation that cannot read constants is refused.
void Loader::check_constants(const Op& op) {
  if (op.out < 0) return check(!at(op.in).filled, "the result holds constants");
  const auto filled = [&](int tensor) { return tensor >= 0 && at(tensor).filled; };
  const bool any = filled(op.in) || filled(op.in2) || std::any_of(op.inputs.begin(), op.inputs.end(), filled);
  const auto all_whole = [&] { return std::all_of(op.inputs.begin(), op.inputs.end(), [&](int t) { return at(t).whole; }); };
  bool whole = true, fills = any;
  switch (op.kind) {
    case OpKind::conv:
      check(!any || (op.takes_constants && !op.keeps_list && !filled(op.in2)), "only a 1x1 convolution reads constants");
      whole = op.knob < 0 && !op.keeps_list;
      fills = op.keeps_list;
      break;
    case OpKind::pool: {
      const PoolShape& w = op.window;
      const bool padded = (w.pad_h > 0 || w.pad_w > 0) && w.count_padding;
      check(!any || op.pool == Pool::max || (!padded && w.divisor == 0), "a mean over padding makes constants uneven");
      whole = at(op.in).whole;
      break;
    }
    case OpKind::adaptive_pool:
      // Means of codes are stored for every channel.
      whole = at(op.in).whole || (any && at(op.in).is_codes());
      break;
    case OpKind::pack: whole = at(op.in).whole; break;
    case OpKind::affine:
      check(!any || op.inputs.empty(), "constants are not concatenated");
      whole = (op.inputs.empty() ? at(op.in).whole : all_whole()) || !(op.passes_channels() || any);
      break;
    case OpKind::add: whole = at(op.in).whole || at(op.in2).whole; break;
    case OpKind::scale:
      whole = at(op.in).whole && (at(op.in2).whole || filled(op.in2));
      fills = filled(op.in);
      break;
    case OpKind::concat:
      whole = all_whole();
      check(!any, "constants are not concatenated");
      break;
    case OpKind::linear: check(!any || at(op.in).layout == Layout::vector, "constants of a vector are multiplied"); break;
    case OpKind::spread: break;
    default: check(!any, "this kind of operation cannot read constants"); break;
  }
  Tensor& out = program_->tensors[static_cast<std::size_t>(op.out)];
  const bool reads_codes = any && at(op.in).is_codes();
  check(!any || reads_codes || !out.is_codes(), "constants of codes come from codes");
  const bool known = op.kind == OpKind::conv || op.kind == OpKind::adaptive_pool ||
                     (op.kind == OpKind::scale && op.function == Function::none && !filled(op.in2));
  check(!reads_codes || known, "this kind of operation cannot read constants of codes");
  out.whole = whole;
  out.filled = fills && !whole;
}

}  // namespace penstock
