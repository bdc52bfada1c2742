// CRC-32 as zlib, gzip and PNG have it (reflected polynomial 0xEDB88320): Python checks it with zlib.crc32.
#pragma once
#include <cstddef>
#include <cstdint>

namespace penstock {

// The checksum of `size` bytes that follow bytes whose checksum is `before` (0 for none).
std::uint32_t crc32(const unsigned char* bytes, std::size_t size, std::uint32_t before = 0);

// The checksum of bytes in two parts, from those of each part by itself.
std::uint32_t crc32_joined(std::uint32_t first, std::uint32_t second, std::size_t second_size);

}  // namespace penstock
