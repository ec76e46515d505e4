#include "core/memory_pool.h"

#include <cstring>
#include <utility>

#include "core/hash.h"

namespace hexane {

Block MemoryPool::keep(Memory memory) {
  const Bytes bytes(memory.data(), memory.size());
  const uint64_t key = murmur3_128(bytes)[0];
  const Block there = find(key, bytes);
  return there ? there : add(key, std::move(memory));
}

Block MemoryPool::copy(Bytes bytes) {
  const uint64_t key = murmur3_128(bytes)[0];
  if (Block there = find(key, bytes)) return there;
  Memory memory(bytes.size(), "weights");
  if (!bytes.empty()) std::memcpy(memory.data(), bytes.data(), bytes.size());
  return add(key, std::move(memory));
}

Block MemoryPool::find(uint64_t key, Bytes bytes) {
  const std::lock_guard lock(mutex_);
  auto [each, end] = blocks_.equal_range(key);
  while (each != end) {
    Block block = each->second.lock();
    if (!block) {
      each = blocks_.erase(each);
      continue;
    }
    if (block->size() == bytes.size() && (bytes.empty() || !std::memcmp(block->data(), bytes.data(), bytes.size())))
      return block;
    ++each;
  }
  return nullptr;
}

Block MemoryPool::add(uint64_t key, Memory memory) {
  auto block = std::make_shared<const Memory>(std::move(memory));
  const std::lock_guard lock(mutex_);
  if (blocks_.size() >= sweep_at_) {
    std::erase_if(blocks_, [](const auto& item) { return item.second.expired(); });
    sweep_at_ = 2 * blocks_.size() + 64;
  }
  blocks_.emplace(key, block);
  return block;
}

}  // namespace hexane
