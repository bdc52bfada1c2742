// CRC-32 as zlib, gzip and PNG have it (reflected polynomial 0xEDB88320): Python checks it with zlib.crc32.
#pragma once
#include <cstddef>
#include <cstdint>

namespace penstock {

// The checksum of `size` bytes that follow bytes whose checksum is `before` (0 for none).
std::uint32_t crc32(const unsigned char* bytes, std::size_t size, std::uint32_t before = 0);

}  // namespace penstock
