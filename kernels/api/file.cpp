#include "api/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "api/checksum.h"
#include "run/cores.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "compiled files are little-endian and mapped as they are"
#endif

namespace penstock {
namespace {

// docs/file-format.md has the same numbers, byte by byte.
constexpr unsigned char kMagic[8] = {0x89, 'P', 'E', 'N', 'S', 'T', 'K', '\n'};
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHeader = 64, kEntry = 128;
constexpr std::size_t kNameBytes = 64, kMaxRank = 4;
constexpr std::uint32_t kMaxSections = 1024;
constexpr std::uint64_t kMaxSide = std::uint64_t{1} << 40;

template <typename T>
T read(const unsigned char* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

std::size_t element_bytes(FileElement element) {
  switch (element) {
    case FileElement::u8:
    case FileElement::i8: return 1;
    case FileElement::i32:
    case FileElement::f32: return 4;
    case FileElement::i64:
    case FileElement::f64: return 8;
    case FileElement::text: return 0;
  }
  return 0;
}

bool all_zero(const unsigned char* from, std::size_t count) {
  return std::all_of(from, from + count, [](unsigned char byte) { return byte == 0; });
}

// Whether the bytes are well-formed UTF-8 (RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF).
bool is_utf8(const unsigned char* p, const unsigned char* end) {
  while (p < end) {
    const unsigned char lead = *p++;
    if (lead < 0x80) continue;
    const int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
    if (lead < 0xC2 || lead > 0xF4 || end - p < more) return false;
    const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (p[0] < low || p[0] > high) return false;
    for (int i = 1; i < more; ++i)
      if ((p[i] & 0xC0) != 0x80) return false;
    p += more;
  }
  return true;
}

// As crc32, in pieces that cores share.
std::uint32_t crc32_on_cores(const unsigned char* bytes, std::size_t size) {
  constexpr std::size_t kPiece = std::size_t{4} << 20;
  std::vector<std::uint32_t> sums((size + kPiece - 1) / kPiece);
  const auto length = [&](std::size_t i) { return std::min(kPiece, size - i * kPiece); };
  each_on_cores(sums.size(), [&](std::size_t i) { sums[i] = crc32(bytes + i * kPiece, length(i)); });
  std::uint32_t all = 0;
  for (std::size_t i = 0; i < sums.size(); ++i) all = crc32_joined(all, sums[i], length(i));
  return all;
}

struct Closed {
  int file;
  ~Closed() { close(file); }
};

}  // namespace

std::int64_t Section::count() const {
  std::int64_t product = 1;
  for (std::int64_t side : shape) product *= side;
  return product;
}

File::File(std::string name, std::shared_ptr<const void> owner, const unsigned char* data, std::size_t size)
    : name_(std::move(name)), owner_(std::move(owner)), data_(data), size_(size) {
  if (size_ < kHeader) refuse(std::to_string(size_) + " bytes are too few for a compiled network");
  read_header();
  read_sections();
}

std::shared_ptr<const File> File::map(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) throw FileError(path + ": cannot be opened: " + std::strerror(errno));
  const Closed closed{file};
  struct stat status{};
  if (fstat(file, &status) != 0) throw FileError(path + ": cannot be read: " + std::strerror(errno));
  if (!S_ISREG(status.st_mode)) throw FileError(path + ": is not a regular file");
  const std::size_t size = static_cast<std::size_t>(status.st_size);
  if (size == 0) throw FileError(path + ": 0 bytes are too few for a compiled network");
  int flags = MAP_PRIVATE;
#if defined(MAP_POPULATE)
  flags |= MAP_POPULATE;  // the checksum reads every page: one call instead of a fault for each
#endif
  void* const memory = mmap(nullptr, size, PROT_READ, flags, file, 0);
  if (memory == MAP_FAILED) throw FileError(path + ": cannot be mapped: " + std::strerror(errno));
  std::shared_ptr<const void> owner(memory, [size](void* mapped) { munmap(mapped, size); });
  return keep(std::move(owner), memory, size, path);
}

std::shared_ptr<const File> File::copy(const void* bytes, std::size_t size, const std::string& name) {
  void* memory = nullptr;
  if (posix_memalign(&memory, kFileAlign, std::max<std::size_t>(size, 1)) != 0)
    throw FileError(name + ": no memory for " + std::to_string(size) + " bytes");
  std::shared_ptr<const void> owner(memory, [](void* p) { std::free(p); });
  if (size > 0) std::memcpy(memory, bytes, size);
  return keep(std::move(owner), memory, size, name);
}

std::shared_ptr<const File> File::keep(std::shared_ptr<const void> owner, const void* bytes, std::size_t size,
                                       const std::string& name) {
  return std::shared_ptr<const File>(new File(name, std::move(owner), static_cast<const unsigned char*>(bytes), size));
}

void File::refuse(const std::string& why) const { throw FileError(name_ + ": " + why); }

void File::read_header() const {
  if (std::memcmp(data_, kMagic, sizeof kMagic) != 0) refuse("is not a compiled network: its first bytes are others");
  const std::uint32_t version = read<std::uint32_t>(data_ + 8);
  if (version != kVersion)
    refuse("is of file version " + std::to_string(version) + ", and this runtime reads " + std::to_string(kVersion) +
           (version > kVersion ? "; install a newer penstock-runtime" : ""));
  const std::uint64_t said = read<std::uint64_t>(data_ + 16);
  if (said != size_)
    refuse((said > size_ ? "is cut off: it has " : "has bytes too many: ") + std::to_string(size_) +
           " bytes, and its header says " + std::to_string(said));
  const std::uint32_t sum = crc32_joined(crc32(data_, 24), crc32_on_cores(data_ + 32, size_ - 32), size_ - 32);
  if (sum != read<std::uint32_t>(data_ + 24)) refuse("is damaged: its checksum is another; copy the file again");
  if (!all_zero(data_ + 28, kHeader - 28)) refuse("is damaged: reserved bytes of its header are not zero");
}

void File::read_sections() {
  const std::uint32_t count = read<std::uint32_t>(data_ + 12);
  if (count > kMaxSections || kHeader + count * kEntry > size_) refuse("has a table of " + std::to_string(count) + " sections");
  std::size_t end = kHeader + count * kEntry;
  for (std::uint32_t i = 0; i < count; ++i) {
    const unsigned char* const entry = data_ + kHeader + i * kEntry;
    const auto require = [&](bool good, const char* what) {
      if (!good) refuse("section " + std::to_string(i) + ": " + what);
    };
    Section section;
    const unsigned char* const name_end = std::find(entry, entry + kNameBytes, 0);
    section.name.assign(entry, name_end);
    require(!section.name.empty() && name_end != entry + kNameBytes &&
                all_zero(name_end, static_cast<std::size_t>(entry + kNameBytes - name_end)),
            "its name does not end");
    require(std::all_of(entry, name_end, [](unsigned char c) { return c > ' ' && c < 127; }), "its name has strange letters");
    require(find(section.name) == nullptr, "its name stands twice");
    const std::uint32_t element = read<std::uint32_t>(entry + 64), rank = read<std::uint32_t>(entry + 68);
    require(element >= 1 && element <= static_cast<std::uint32_t>(FileElement::text),
            "unknown element type; a newer runtime may know it");
    section.element = static_cast<FileElement>(element);
    require(rank <= kMaxRank && (section.element != FileElement::text || rank == 1), "number of axes");
    std::uint64_t product = 1;
    for (std::size_t axis = 0; axis < kMaxRank; ++axis) {
      const std::uint64_t side = read<std::uint64_t>(entry + 72 + 8 * axis);
      require(axis < rank ? side <= kMaxSide : side == 0, "shape");
      if (axis >= rank) continue;
      require(side == 0 || product <= kMaxSide / side, "shape");
      product *= side;
      section.shape.push_back(static_cast<std::int64_t>(side));
    }
    const std::uint64_t offset = read<std::uint64_t>(entry + 104), bytes = read<std::uint64_t>(entry + 112);
    require(all_zero(entry + 120, 8), "reserved bytes");
    require(offset % kFileAlign == 0 && offset >= end && offset <= size_ && bytes <= size_ - offset, "place");
    section.data = data_ + offset;
    section.bytes = static_cast<std::size_t>(bytes);
    if (section.element == FileElement::text) check_text(section);
    else require(bytes == product * element_bytes(section.element), "its size is not that of its shape");
    end = static_cast<std::size_t>(offset + bytes);
    sections_.push_back(std::move(section));
  }
}

void File::check_text(const Section& section) const {
  const auto ends = std::count(section.data, section.data + section.bytes, 0);
  if (ends != section.shape[0] || (section.bytes > 0 && section.data[section.bytes - 1] != 0))
    refuse("section " + section.name + ": its strings do not end");
  if (!is_utf8(section.data, section.data + section.bytes)) refuse("section " + section.name + ": is not UTF-8");
}

const Section* File::find(std::string_view name) const {
  for (const Section& section : sections_)
    if (section.name == name) return &section;
  return nullptr;
}

std::vector<std::string> File::texts(std::string_view name) const {
  std::vector<std::string> found;
  const Section* const section = find(name);
  if (section == nullptr) return found;
  if (section->element != FileElement::text) refuse("section " + section->name + ": expected text");
  const char* p = reinterpret_cast<const char*>(section->data);
  for (std::int64_t i = 0; i < section->shape[0]; ++i) {
    found.emplace_back(p);
    p += found.back().size() + 1;
  }
  return found;
}

}  // namespace penstock
