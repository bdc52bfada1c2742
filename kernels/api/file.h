// The compiled file (docs/file-format.md): a header, a table of named sections, and the sections, 64-byte aligned.
//
// Opening one checks the header, the checksum and every entry of the table, or refuses the file with a FileError. After
// that a section's pointer, element type and shape can be trusted; what its numbers mean is for model.h to check.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

struct FileError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class FileElement : std::uint32_t { u8 = 1, i8 = 2, i32 = 3, i64 = 4, f32 = 5, f64 = 6, text = 7 };

struct Section {
  std::string name;
  FileElement element;
  std::vector<std::int64_t> shape;  // of text: how many strings
  const unsigned char* data;
  std::size_t bytes;
  std::int64_t count() const;
};

// Sections begin at multiples of this, in the file and in memory.
constexpr std::size_t kFileAlign = 64;

class File {
 public:
  // Maps the file; its pages are read as they are needed and shared between processes.
  static std::shared_ptr<const File> map(const std::string& path);
  // Takes the bytes where they are, at a multiple of kFileAlign, for as long as their owner is held.
  static std::shared_ptr<const File> keep(std::shared_ptr<const void> owner, const void* bytes, std::size_t size,
                                          const std::string& name = "the file in memory");
  // Keeps a copy of the bytes. `name` stands for the file in messages.
  static std::shared_ptr<const File> copy(const void* bytes, std::size_t size, const std::string& name = "the file in memory");

  const unsigned char* data() const { return data_; }
  std::size_t size() const { return size_; }
  const std::string& name() const { return name_; }
  const std::vector<Section>& sections() const { return sections_; }
  const Section* find(std::string_view name) const;  // or null
  // Strings of a text section, or none when there is no such section.
  std::vector<std::string> texts(std::string_view name) const;
  [[noreturn]] void refuse(const std::string& why) const;

 private:
  File(std::string name, std::shared_ptr<const void> owner, const unsigned char* data, std::size_t size);
  void read_header() const;
  void read_sections();
  void check_text(const Section& section) const;

  std::string name_;
  std::shared_ptr<const void> owner_;
  const unsigned char* data_;
  std::size_t size_;
  std::vector<Section> sections_;
};

}  // namespace penstock
