// The one memory planner. Rooms (blocks of memory) that are needed at the same time do not overlap; others may share memory.
//
// Compiling asks it for the offsets of feature maps, loading for those of maps and scratch together, and a run for a tighter packing
// when gates leave channels out.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace penstock {

// Memory that operations `first` to `last` need.
struct Room {
  int first, last;
  std::int64_t floats;
};

struct PackedRooms {
  std::vector<std::int64_t> offsets;  // of each room
  std::int64_t end = 0;
};

// Places each room as low as it fits beside those placed before it. Rooms come in the order of `first`, so that memory that has just
// been given back is used again while it is in a cache.
PackedRooms pack_by_time(const std::vector<Room>& rooms);

// Tries several orders of placing and returns the one that ends lowest. More than kManyRooms rooms are placed in order of time.
PackedRooms pack_tightly(const std::vector<Room>& rooms);

constexpr std::size_t kManyRooms = 2000;

}  // namespace penstock
