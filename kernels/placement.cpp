#include "placement.h"

#include <algorithm>

namespace penstock {
namespace {

// A tensor that an operation wrote over shares the memory of what it was.
std::vector<int> find_homes(const Program& program) {
  std::vector<int> homes(program.tensors.size());
  for (std::size_t t = 0; t < homes.size(); ++t) homes[t] = static_cast<int>(t);
  for (const Op& op : program.ops) {
    const int source = op.kind == OpKind::affine || op.kind == OpKind::scale ? op.in : op.kind == OpKind::conv ? op.in2 : -1;
    if (source < 0) continue;
    const std::size_t from = static_cast<std::size_t>(source), to = static_cast<std::size_t>(op.out);
    if (program.tensors[from].offset == program.tensors[to].offset) homes[to] = homes[from];
  }
  return homes;
}

// The most planes that each tensor can have.
std::vector<std::int64_t> find_bounds(const Program& program, const std::int32_t* winners) {
  std::vector<std::int64_t> bounds(program.tensors.size());
  for (const Op& op : program.ops) {
    if (op.out < 0) continue;
    const auto bound = [&](int tensor) { return bounds[static_cast<std::size_t>(tensor)]; };
    const std::int64_t channels = program.tensors[static_cast<std::size_t>(op.out)].channels;
    std::int64_t most = channels;
    switch (op.kind) {
      case OpKind::conv:
        if (op.knob >= 0) most = winners_of(op, static_cast<int>(channels), winners);
        if (op.in2 >= 0) most += bound(op.in2);
        break;
      case OpKind::pool:
      case OpKind::adaptive_pool:
      case OpKind::scale:
      case OpKind::pack:
        most = bound(op.in);
        break;
      case OpKind::affine:
        if (op.passes_channels()) most = bound(op.in);
        break;
      case OpKind::add:
        most = bound(op.in) + bound(op.in2);
        break;
      case OpKind::concat:
        most = 0;
        for (int input : op.inputs) most += bound(input);
        break;
      default:
        break;
    }
    bounds[static_cast<std::size_t>(op.out)] = std::min(most, channels);
  }
  return bounds;
}

struct Room {
  std::int64_t begin, end;
  int last;  // operation that needs it
};

}  // namespace

Placement place_all(const Program& program) {
  Placement placement;
  for (const Tensor& t : program.tensors) placement.tensors.push_back(t.offset);
  for (const Op& op : program.ops) {
    placement.scratch.push_back(op.scratch);
    placement.scratch_offsets.push_back(op.scratch_offset);
  }
  placement.spares.assign(program.ops.size(), -1);
  return placement;
}

Placement place_for(const Program& program, int threads, const std::int32_t* winners) {
  Placement placement;
  const std::vector<std::int64_t> bounds = find_bounds(program, winners);
  placement.tensors.resize(program.tensors.size());
  const std::vector<int> homes = find_homes(program);
  const Lives lives = find_lives(program);
  std::vector<std::int64_t> sizes(program.tensors.size());
  std::vector<int> last(program.tensors.size(), -1);
  for (std::size_t t = 0; t < program.tensors.size(); ++t) {
    const std::size_t home = static_cast<std::size_t>(homes[t]);
    const bool bare = static_cast<int>(t) == program.input && program.image_reader >= 0;  // lies in the caller's memory
    sizes[home] = std::max(sizes[home], bare ? 0 : round_to_line(program.tensors[t].step() * bounds[t]));
    last[home] = std::max(last[home], lives.last[t]);
  }
  std::vector<Room> rooms;  // in use, by where they begin
  std::int64_t end = 0;
  const auto take = [&](std::int64_t size, int until) {
    std::int64_t begin = 0;
    auto at = rooms.begin();
    for (; at != rooms.end() && begin + size > at->begin; ++at) begin = std::max(begin, at->end);
    // Rooms without size may lie inside others; `at` is still in order.
    rooms.insert(at, Room{begin, begin + size, until});
    end = std::max(end, begin + size);
    return begin;
  };
  for (int i = 0; i < static_cast<int>(program.ops.size()); ++i) {
    const Op& op = program.ops[static_cast<std::size_t>(i)];
    rooms.erase(std::remove_if(rooms.begin(), rooms.end(), [&](const Room& room) { return room.last < i; }), rooms.end());
    if (op.out >= 0) {
      const std::size_t out = static_cast<std::size_t>(op.out), home = static_cast<std::size_t>(homes[out]);
      placement.tensors[out] = home == out ? take(sizes[out], last[out]) : placement.tensors[home];
    }
    const auto bound = [&](int t) { return t < 0 ? 0 : static_cast<int>(bounds[static_cast<std::size_t>(t)]); };
    placement.scratch.push_back(scratch_for(op, bound(op.in), bound(op.out)));
    const std::int64_t floats = placement.scratch.back().total(threads);
    placement.scratch_offsets.push_back(floats > 0 ? take(floats, i) : 0);
    // A task may use as much as the planes it does not compute would take (Walk::conv), which here lie elsewhere.
    std::int64_t spare = 0;
    if (op.kind == OpKind::conv && op.in2 < 0) {
      const std::int64_t used = static_cast<std::int64_t>(conv_scratch(*op.plan, bound(op.in), bound(op.out)).spare);
      spare = round_to_line(std::min(used, program.tensors[static_cast<std::size_t>(op.out)].floats()));
    }
    placement.spares.push_back(spare > 0 ? take(spare, i) : -1);
  }
  return end < program.arena_floats ? placement : place_all(program);
}

}  // namespace penstock
