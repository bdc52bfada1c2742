#include "run/rooms.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace penstock {
namespace {

struct Taken {
  std::int64_t begin, end;
  std::size_t room;
};

// With `by_time`, rooms that were needed only before the one that is placed will not be met again.
PackedRooms first_fit(const std::vector<Room>& rooms, const std::vector<std::size_t>& order, bool by_time) {
  PackedRooms packed;
  packed.offsets.resize(rooms.size());
  std::vector<Taken> taken;  // by where they begin
  for (std::size_t number : order) {
    const Room& room = rooms[number];
    const auto ended = [&](const Taken& t) { return rooms[t.room].last < room.first; };
    if (by_time) taken.erase(std::remove_if(taken.begin(), taken.end(), ended), taken.end());
    std::int64_t begin = 0;
    for (const Taken& t : taken) {
      if (ended(t) || rooms[t.room].first > room.last) continue;
      if (begin + room.floats <= t.begin) break;
      begin = std::max(begin, t.end);
    }
    const auto after = [](const Taken& t, std::int64_t value) { return t.begin < value; };
    taken.insert(std::lower_bound(taken.begin(), taken.end(), begin, after), Taken{begin, begin + room.floats, number});
    packed.offsets[number] = begin;
    packed.end = std::max(packed.end, begin + room.floats);
  }
  return packed;
}

// The most floats that are needed at any operation that needs the room.
std::vector<std::int64_t> find_busiest(const std::vector<Room>& rooms) {
  int operations = 0;
  for (const Room& room : rooms) operations = std::max(operations, room.last + 1);
  std::vector<std::int64_t> load(static_cast<std::size_t>(operations));
  for (const Room& room : rooms)
    for (int i = room.first; i <= room.last; ++i) load[static_cast<std::size_t>(i)] += room.floats;
  std::vector<std::int64_t> busiest;
  for (const Room& room : rooms) busiest.push_back(*std::max_element(load.begin() + room.first, load.begin() + room.last + 1));
  return busiest;
}

std::vector<std::size_t> in_turn(const std::vector<Room>& rooms) {
  std::vector<std::size_t> order(rooms.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  return order;
}

}  // namespace

PackedRooms pack_by_time(const std::vector<Room>& rooms) { return first_fit(rooms, in_turn(rooms), true); }

PackedRooms pack_tightly(const std::vector<Room>& rooms) {
  std::vector<std::size_t> order = in_turn(rooms);
  const auto earlier = [&](std::size_t a, std::size_t b) { return rooms[a].first < rooms[b].first; };
  std::stable_sort(order.begin(), order.end(), earlier);
  PackedRooms best = first_fit(rooms, order, true);
  if (rooms.size() > kManyRooms) return best;
  const std::vector<std::int64_t> busiest = find_busiest(rooms);
  const auto attempt = [&](auto key) {
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return key(a) < key(b); });
    PackedRooms packed = first_fit(rooms, order, false);
    if (packed.end < best.end) best = std::move(packed);
  };
  const auto lives = [&](std::size_t r) { return std::make_tuple(rooms[r].first, rooms[r].last); };
  const auto lasts = [&](std::size_t r) { return rooms[r].last > rooms[r].first ? 0 : 1; };  // maps before scratch
  attempt([&](std::size_t r) { return std::make_tuple(lives(r), -rooms[r].floats); });
  attempt([&](std::size_t r) { return std::make_tuple(-rooms[r].floats, lives(r)); });
  attempt([&](std::size_t r) { return std::make_tuple(-busiest[r], -rooms[r].floats, lives(r)); });
  attempt([&](std::size_t r) { return std::make_tuple(-busiest[r], rooms[r].floats, lives(r)); });
  attempt([&](std::size_t r) { return std::make_tuple(-busiest[r], lives(r)); });
  attempt([&](std::size_t r) { return std::make_tuple(lasts(r), -rooms[r].floats, lives(r)); });
  attempt([&](std::size_t r) { return std::make_tuple(lasts(r), -busiest[r], -rooms[r].floats, lives(r)); });
  attempt([&](std::size_t r) { return std::make_tuple(lasts(r), -busiest[r], lives(r)); });
  return best;
}

}  // namespace penstock
