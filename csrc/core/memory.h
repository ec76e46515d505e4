// Zeroed memory on page boundaries: arenas, state, scratch. The system provides pages at first access.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace hexane {

class Memory {
 public:
  Memory() = default;
  Memory(uint64_t bytes, const std::string& what);  // throws Error, naming `what`, if memory is short
  Memory(Memory&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Memory& operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Memory();
  std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
};

// Returns to the system the freed memory that the C library keeps. glibc may keep much: once a large block is freed,
// it takes blocks of that size from its heap, which shrinks only at its end.
void give_back_free_memory();

}  // namespace hexane
