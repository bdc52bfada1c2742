#include "run/placement.h"

#include <algorithm>

#include "run/loader.h"
#include "run/rooms.h"

namespace penstock {
namespace {

// Tensors whose memory each tensor uses: its own, or that of the tensor which an operation wrote over.
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
    const auto all_inputs = [&](const Op& of) {
      std::int64_t sum = 0;
      for (int input : of.inputs) sum += bound(input);
      return sum;
    };
    const std::int64_t channels = program.tensors[static_cast<std::size_t>(op.out)].channels;
    std::int64_t most = channels;
    switch (op.kind) {
      case OpKind::conv:
        if (op.knob >= 0) most = winners_of(op, static_cast<int>(channels), winners);
        if (op.keeps_list) most = bound(op.in);
        if (op.in2 >= 0) most += bound(op.in2);
        break;
      case OpKind::adaptive_pool: {
        const Tensor& in = program.tensors[static_cast<std::size_t>(op.in)];
        if (!in.filled || !in.is_codes()) most = bound(op.in);
        break;
      }
      case OpKind::pool:
      case OpKind::scale:
      case OpKind::pack: most = bound(op.in); break;
      case OpKind::affine:
        if (!op.passes_channels() && !program.tensors[static_cast<std::size_t>(op.in)].filled) break;
        most = op.inputs.empty() ? bound(op.in) : all_inputs(op);
        break;
      case OpKind::add: most = bound(op.in) + bound(op.in2); break;
      case OpKind::concat: most = all_inputs(op); break;
      default: break;
    }
    bounds[static_cast<std::size_t>(op.out)] = std::min(most, channels);
  }
  return bounds;
}

// As the program says: room for all channels of every tensor.
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

// The rooms of a program's tensors and scratch, in the order in which operations ask for them.
class Rooms {
 public:
  Rooms(const Program& program, const std::vector<std::int64_t>& channels) : program_(program) {
    const std::vector<int> last_uses = find_last_uses(program);
    sizes_.resize(program.tensors.size());
    last_.assign(program.tensors.size(), -1);
    tensors_.assign(program.tensors.size(), -1);
    for (std::size_t t = 0; t < program.tensors.size(); ++t) {
      const std::size_t home = static_cast<std::size_t>(program.homes[t]);
      const bool bare = program.is_bare(static_cast<int>(t));
      sizes_[home] = std::max(sizes_[home], bare ? 0 : program.tensors[t].floats_for(channels[t]));
      last_[home] = std::max(last_[home], last_uses[t]);
    }
  }

  // The result of operation `op`, if it has memory of its own.
  void add_result(int op) {
    const int out = program_.ops[static_cast<std::size_t>(op)].out;
    if (out < 0 || program_.homes[static_cast<std::size_t>(out)] != out) return;
    const std::size_t t = static_cast<std::size_t>(out);
    tensors_[t] = add(sizes_[t], op, last_[t]);
  }
  // Memory that operation `op` alone needs; its number, or -1 for none.
  int add_scratch(std::int64_t floats, int op) { return floats > 0 ? add(floats, op, op) : -1; }

  // Offsets of all tensors.
  std::vector<std::int64_t> places(const PackedRooms& packed) const {
    std::vector<std::int64_t> offsets;
    for (int home : program_.homes) {
      const int room = tensors_[static_cast<std::size_t>(home)];
      offsets.push_back(room < 0 ? 0 : packed.offsets[static_cast<std::size_t>(room)]);
    }
    return offsets;
  }
  const std::vector<Room>& all() const { return rooms_; }

 private:
  int add(std::int64_t floats, int first, int last) {
    rooms_.push_back({first, std::max(first, last), round_to_line(floats)});
    return static_cast<int>(rooms_.size()) - 1;
  }
  const Program& program_;
  std::vector<Room> rooms_;
  std::vector<std::int64_t> sizes_;  // of homes
  std::vector<int> last_, tensors_;  // operation that needs a home; its room
};

std::int64_t offset_of(const PackedRooms& packed, int room, std::int64_t none) {
  return room < 0 ? none : packed.offsets[static_cast<std::size_t>(room)];
}

}  // namespace

void place_program(Program& program, int threads) {
  program.homes = find_homes(program);
  std::vector<std::int64_t> channels;
  for (const Tensor& t : program.tensors) channels.push_back(t.channels);
  Rooms rooms(program, channels);
  std::vector<int> scratch;
  for (int i = 0; i < static_cast<int>(program.ops.size()); ++i) {
    Op& op = program.ops[static_cast<std::size_t>(i)];
    if (op.int8)
      op.scratch = scratch_for(op, program.tensors[static_cast<std::size_t>(op.in)].channels,
                               program.tensors[static_cast<std::size_t>(op.out)].channels, threads);
    rooms.add_result(i);
    scratch.push_back(rooms.add_scratch(op.scratch.total(threads), i));
  }
  const PackedRooms packed = pack_tightly(rooms.all());
  if (packed.end > kMaxArenaFloats) throw ProgramError("program refused at the whole program: it needs too much memory");
  const std::vector<std::int64_t> places = rooms.places(packed);
  for (std::size_t t = 0; t < places.size(); ++t) program.tensors[t].offset = places[t];
  for (std::size_t i = 0; i < scratch.size(); ++i) program.ops[i].scratch_offset = offset_of(packed, scratch[i], 0);
  program.arena_floats = packed.end;
}

Placement place_for(const Program& program, int threads, const std::int32_t* winners) {
  Placement placement;
  const std::vector<std::int64_t> bounds = find_bounds(program, winners);
  Rooms rooms(program, bounds);
  std::vector<int> scratch, spares;
  for (int i = 0; i < static_cast<int>(program.ops.size()); ++i) {
    const Op& op = program.ops[static_cast<std::size_t>(i)];
    rooms.add_result(i);
    const auto bound = [&](int t) { return t < 0 ? 0 : static_cast<int>(bounds[static_cast<std::size_t>(t)]); };
    placement.scratch.push_back(scratch_for(op, bound(op.in), bound(op.out), threads));
    scratch.push_back(rooms.add_scratch(placement.scratch.back().total(threads), i));
    // A task may use as much as the planes it does not compute would take (Walk::conv), which here lie elsewhere.
    const bool alone = op.kind == OpKind::conv && op.in2 < 0 && !op.int8;
    const std::int64_t spare =
        alone ? std::min(placement.scratch.back().spare, round_to_line(program.tensors[static_cast<std::size_t>(op.out)].floats()))
              : 0;
    spares.push_back(rooms.add_scratch(spare, i));
  }
  const PackedRooms packed = pack_by_time(rooms.all());
  if (packed.end >= program.arena_floats) return place_all(program);
  placement.tensors = rooms.places(packed);
  for (int room : scratch) placement.scratch_offsets.push_back(offset_of(packed, room, 0));
  for (int room : spares) placement.spares.push_back(offset_of(packed, room, -1));
  return placement;
}

}  // namespace penstock
