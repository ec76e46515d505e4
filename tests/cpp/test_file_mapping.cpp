// Parts of a mapped file in a pool, used by several threads at the same time.
#include "core/file_mapping.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <thread>
#include <vector>

#include "check.h"
#include "core/memory_pool.h"

using namespace hexane;

namespace {

constexpr size_t kPart = 64 << 10;
constexpr size_t kParts = 16;

// An open file whose part i has the byte i everywhere. The file has no name.
int numbered_file() {
  char name[] = "/tmp/hexane_mapping_XXXXXX";
  const int file = ::mkstemp(name);
  CHECK(file >= 0);
  ::unlink(name);
  for (size_t i = 0; i < kParts; ++i) {
    const std::vector<std::byte> part(kPart, static_cast<std::byte>(i));
    CHECK(::write(file, part.data(), kPart) == static_cast<ssize_t>(kPart));
  }
  return file;
}

}  // namespace

int main() {
  const int file = numbered_file();
  MemoryPool pool;
  std::atomic<int> wrong{0}, made{0};

  const auto use = [&](size_t seed) {
    for (size_t round = 0; round < 50; ++round) {
      // Each round has a mapping of its own, whose address may be that of a mapping that another thread gave back.
      const auto mapping = FileMapping::map(file, "test");
      if (!mapping || mapping->bytes().size() != kPart * kParts) {
        ++wrong;
        return;
      }
      const size_t i = (seed + round) % kParts;
      const Bytes part = mapping->bytes().subspan(i * kPart, kPart);
      if (FileMapping::at(part.data() + 5) != mapping) ++wrong;
      const Block block = pool.map(part, mapping);
      if (block->data()[0] != static_cast<std::byte>(i) || block->data()[kPart - 1] != static_cast<std::byte>(i))
        ++wrong;
      const Block packed = pool.made_of(block->data(), "packed", [&] {
        ++made;
        Memory memory(64, "packed");
        memory.data()[0] = block->data()[1];
        return memory;
      });
      if (packed->data()[0] != static_cast<std::byte>(i)) ++wrong;
      mapping->release(part);
      if (block->data()[kPart / 2] != static_cast<std::byte>(i)) ++wrong;  // read from the file again
      mapping->check_unchanged();
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 8; ++i) threads.emplace_back(use, i);
  for (std::thread& one : threads) one.join();
  CHECK(wrong == 0);
  CHECK(made > 0);

  const auto mapping = FileMapping::map(file, "test");
  const std::byte* inside = mapping->bytes().data() + 1;
  CHECK(FileMapping::at(inside) == mapping);
  CHECK(FileMapping::at(&pool) == nullptr);
  CHECK(::ftruncate(file, kPart) == 0);
  bool told = false;
  try {
    mapping->check_unchanged();
  } catch (const Error&) {
    told = true;
  }
  CHECK(told);
  ::close(file);
  return 0;
}
