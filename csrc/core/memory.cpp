#include "core/memory.h"

#include <sys/mman.h>

#include "core/error.h"

namespace hexane {

namespace {
constexpr uint64_t kMost = uint64_t{1} << 40;
constexpr uint64_t kHuge = uint64_t{4} << 20;  // from here on large pages save more than they may waste
}  // namespace

Memory::Memory(uint64_t bytes, const std::string& what) : size_(bytes) {
  if (bytes > kMost) fail("memory", what, ": got ", bytes, " bytes, need at most ", kMost);
  if (bytes == 0) return;
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) fail("memory", what, ": cannot get ", bytes, " bytes from the system");
  data_ = static_cast<std::byte*>(data);
#ifdef MADV_HUGEPAGE
  if (bytes >= kHuge) ::madvise(data, bytes, MADV_HUGEPAGE);
#endif
}

Memory::~Memory() {
  if (data_) ::munmap(data_, size_);
}

}  // namespace hexane
