#include "core/memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "core/error.h"

namespace hexane {

namespace {
constexpr uint64_t kMost = uint64_t{1} << 40;
constexpr uint64_t kHuge = uint64_t{4} << 20;  // from here on large pages save more than they may waste

// AddressSanitizer sees an access past the end of a heap block, but not of a mapping.
#ifdef __SANITIZE_ADDRESS__
constexpr uint64_t kMostOnHeap = uint64_t{256} << 20;
#else
constexpr uint64_t kMostOnHeap = 0;
#endif
}  // namespace

Memory::Memory(uint64_t bytes, const std::string& what) : size_(bytes) {
  if (bytes > kMost) fail("memory", what, ": got ", bytes, " bytes, need at most ", kMost);
  if (bytes == 0) return;
  if (bytes <= kMostOnHeap) {
    void* block = nullptr;
    if (::posix_memalign(&block, 64, bytes) != 0) fail("memory", what, ": cannot get ", bytes, " bytes");
    data_ = static_cast<std::byte*>(std::memset(block, 0, bytes));
    return;
  }
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) fail("memory", what, ": cannot get ", bytes, " bytes from the system");
  data_ = static_cast<std::byte*>(data);
#ifdef MADV_HUGEPAGE
  if (bytes >= kHuge) ::madvise(data, bytes, MADV_HUGEPAGE);
#endif
}

Memory::~Memory() {
  if (size_ <= kMostOnHeap)
    std::free(data_);
  else if (data_)
    ::munmap(data_, size_);
}

}  // namespace hexane
