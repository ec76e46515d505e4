// Blocks that are kept once, and what is made of them once.
#include "core/memory_pool.h"

#include <vector>

#include "check.h"

using namespace hexane;

int main() {
  MemoryPool pool;
  std::vector<std::byte> data(100000, std::byte{7});
  int count = 0;
  const auto make = [&] {
    Memory memory(64, "made");
    memory.data()[0] = static_cast<std::byte>(++count);
    return memory;
  };
  Block source = pool.copy(data);
  CHECK(pool.copy(data) == source);
  const std::byte* const from = source->data();
  Block made = pool.made_of(from, "a", make);
  CHECK(pool.made_of(from, "a", make) == made && count == 1);
  CHECK(pool.made_of(from, "b", make) != made && count == 2);      // of another layout
  CHECK(pool.made_of(from + 8, "a", make) != made && count == 3);  // of other bytes of the copy
  made.reset();
  pool.made_of(from, "a", make);  // nobody held it any more
  CHECK(count == 4);

  const Block held = pool.made_of(from, "c", make);
  source.reset();
  data[0] = std::byte{8};
  source = pool.copy(data);  // perhaps at the same address
  CHECK(pool.made_of(source->data(), "c", make) != held && count == 6);

  std::vector<std::byte> own(100);  // no copy of the pool: other bytes may lie there later
  const Block first = pool.made_of(own.data(), "a", make);
  CHECK(pool.made_of(own.data(), "a", make) != first && count == 8);

  auto [written, bytes] = writable_block(100000, "weights");
  bytes[0] = std::byte{9};
  const Bytes whole(written->data(), written->size());
  CHECK(pool.copy(whole) == written);
  CHECK(pool.copy(whole.first(1000)) != written);  // a part is copied
  const std::vector<std::byte> equal(whole.begin(), whole.end());
  CHECK(pool.copy(equal) == written);
  MemoryPool other;
  CHECK(other.copy(whole) == written);
  auto [second, more] = writable_block(100000, "weights");
  more[0] = std::byte{9};
  CHECK(pool.copy({second->data(), second->size()}) == written);  // equal bytes are kept once
  CHECK(writable_block(0, "weights").first->size() == 0);
  return 0;
}
