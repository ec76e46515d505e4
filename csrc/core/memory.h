// Zeroed memory on page boundaries: arenas, state, scratch. The system gives pages when they are touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace hexane {

class Memory {
 public:
  Memory() = default;
  Memory(uint64_t bytes, const std::string& what);  // throws Error if there is not so much; `what` names it
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

// Returns the freed memory that the C library keeps to the system. It keeps much: once a large block is freed, glibc
// takes blocks of that size from its heap, which shrinks at its end only.
void give_back_free_memory();

}  // namespace hexane
