#include "core/memory.h"

#include <sys/mman.h>
#if __has_include(<malloc.h>)
#include <malloc.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/error.h"
#include "core/file_mapping.h"
#include "core/limits.h"

namespace hexane {

namespace {

// A block of about this size or more begins at a large page and asks the system for large pages. With small pages a
// core that streams weights waits for a walk of the page tables every 4 KiB, and the allocation takes longer.
constexpr uint64_t kLargePage = uint64_t{2} << 20;

// Returns how many bytes of a block lie in large pages. The remainder of a block gets a large page if it fills seven
// eighths of the page.
uint64_t large_bytes(uint64_t bytes) { return (bytes + kLargePage / 8) / kLargePage * kLargePage; }

// AddressSanitizer sees an access past the end of a heap block, but not of a mapping.
#ifdef __SANITIZE_ADDRESS__
constexpr uint64_t kMostOnHeap = uint64_t{256} << 20;
#else
constexpr uint64_t kMostOnHeap = 0;
#endif

// Returns the size of a block's mapping: whole large pages, and the remainder of the block. A longer mapping would take
// a large page for the remainder on systems that give large pages unasked.
uint64_t mapped_bytes(uint64_t bytes) {
  constexpr uint64_t kMostPage = uint64_t{64} << 10;  // the largest page size of a system
  const uint64_t large = large_bytes(bytes);
  return large ? std::max(large, (bytes + kMostPage - 1) / kMostPage * kMostPage) : bytes;
}

std::byte* map(uint64_t bytes, const std::string& what) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) fail("memory", what, ": cannot get ", bytes, " bytes from the system");
  return static_cast<std::byte*>(data);
}

// The aligned block is cut out of a mapping that is one large page longer.
std::byte* map_on_large_pages(uint64_t bytes, const std::string& what) {
  std::byte* const block = map(mapped_bytes(bytes) + kLargePage, what);
  const uint64_t before = -reinterpret_cast<uintptr_t>(block) % kLargePage;
  std::byte* const data = block + before;
  if (before) ::munmap(block, before);
  ::munmap(data + mapped_bytes(bytes), kLargePage - before);
#ifdef MADV_HUGEPAGE
  ::madvise(data, large_bytes(bytes), MADV_HUGEPAGE);
#endif
  return data;
}
}  // namespace

Memory::Memory(uint64_t bytes, const std::string& what) : size_(bytes) {
  if (bytes > kMaxBytes) fail("memory", what, ": got ", bytes, " bytes, need at most ", kMaxBytes);
  if (bytes == 0) return;
  if (bytes <= kMostOnHeap) {
    void* block = nullptr;
    if (::posix_memalign(&block, 4096, bytes) != 0) fail("memory", what, ": cannot get ", bytes, " bytes");
    data_ = static_cast<std::byte*>(std::memset(block, 0, bytes));
    return;
  }
  data_ = large_bytes(bytes) ? map_on_large_pages(bytes, what) : map(bytes, what);
}

Memory::Memory(Bytes part, std::shared_ptr<const FileMapping> file)
    : data_(const_cast<std::byte*>(part.data())), size_(part.size()), file_(std::move(file)) {}

void Memory::release_pages() const {
  if (file_) file_->release({data_, size_});
}

Memory::~Memory() {
  if (file_) return;
  if (size_ <= kMostOnHeap)
    std::free(data_);
  else if (data_)
    ::munmap(data_, mapped_bytes(size_));
}

void give_back_free_memory() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

}  // namespace hexane
