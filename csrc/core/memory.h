// Zeroed memory on page boundaries: arenas, state, scratch. The system provides pages at first access. A part of a
// mapped file can stand in for memory that nobody writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "core/bytes.h"

namespace hexane {

class FileMapping;

class Memory {
 public:
  Memory() = default;
  Memory(uint64_t bytes, const std::string& what);              // throws Error, naming `what`, if memory is short
  Memory(Bytes part, std::shared_ptr<const FileMapping> file);  // read-only: a part of a mapped file
  Memory(Memory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        file_(std::move(other.file_)) {}
  Memory& operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(file_, other.file_);
    return *this;
  }
  ~Memory();
  std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }
  void release_pages() const;  // of a file: the next access reads them again; other memory is unchanged

 private:
  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
  std::shared_ptr<const FileMapping> file_;
};

// Returns to the system the freed memory that the C library keeps. glibc may keep much: once a large block is freed,
// it takes blocks of that size from its heap, which shrinks only at its end.
void give_back_free_memory();

}  // namespace hexane
