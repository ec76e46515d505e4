#include "core/memory_pool.h"

#include <cstring>
#include <iterator>
#include <utility>

#include "core/hash.h"

namespace hexane {
namespace {

ForkMutex writable_mutex;
std::map<const std::byte*, std::weak_ptr<const Memory>> writable;  // by address; entries may have expired
size_t sweep_writable_at = 64;

// Returns the writable_block() with exactly these bytes, or null.
Block writable_at(Bytes bytes) {
  const std::lock_guard lock(writable_mutex);
  const auto found = writable.find(bytes.data());
  if (found == writable.end()) return nullptr;
  Block block = found->second.lock();
  return block && block->size() == bytes.size() ? block : nullptr;
}

}  // namespace

std::pair<Block, std::byte*> writable_block(uint64_t bytes, const std::string& what) {
  Memory memory(bytes, what);
  std::byte* const data = memory.data();
  auto block = std::make_shared<const Memory>(std::move(memory));
  if (!data) return {block, data};
  const std::lock_guard lock(writable_mutex);
  if (writable.size() >= sweep_writable_at) {
    std::erase_if(writable, [](const auto& item) { return item.second.expired(); });
    sweep_writable_at = 2 * writable.size() + 64;
  }
  writable[data] = block;
  return {block, data};
}

Block MemoryPool::keep(Memory memory) {
  const Bytes bytes(memory.data(), memory.size());
  const uint64_t key = murmur3_128(bytes)[0];
  const Block there = find(key, bytes);
  return there ? there : add(key, std::make_shared<const Memory>(std::move(memory)));
}

Block MemoryPool::copy(Bytes bytes) {
  return weights(bytes, [&] {
    if (Block whole = writable_at(bytes)) return whole;
    Memory memory(bytes.size(), "weights");
    if (!bytes.empty()) std::memcpy(memory.data(), bytes.data(), bytes.size());
    return std::make_shared<const Memory>(std::move(memory));
  });
}

Block MemoryPool::map(Bytes part, std::shared_ptr<const FileMapping> file) {
  const Memory there(part, file);
  Block block = weights(part, [&] { return std::make_shared<const Memory>(part, std::move(file)); });
  there.release_pages();
  return block;
}

Block MemoryPool::weights(Bytes bytes, const std::function<Block()>& make) {
  {
    const std::lock_guard lock(mutex_);
    Block own = source_of(bytes.data());
    if (own && own->data() == bytes.data() && own->size() == bytes.size()) return own;
  }
  const uint64_t key = murmur3_128(bytes)[0];
  if (Block there = find(key, bytes)) return there;
  Block block = add(key, make());
  const std::lock_guard lock(mutex_);
  // Earlier copies at these addresses have been freed.
  copies_.erase(copies_.lower_bound(block->data()), copies_.lower_bound(block->data() + block->size()));
  copies_[block->data()] = block;
  return block;
}

long MemoryPool::holders(const std::byte* from) const {
  const std::lock_guard lock(mutex_);
  const Block block = source_of(from);
  return block ? block.use_count() - 1 : 0;
}

Block MemoryPool::source_of(const std::byte* from) const {
  auto after = copies_.upper_bound(from);
  if (after == copies_.begin()) return nullptr;
  Block block = std::prev(after)->second.lock();
  return block && from < block->data() + block->size() ? block : nullptr;
}

Block MemoryPool::made_of(const std::byte* from, std::string key, const std::function<Memory()>& make) {
  key.append(reinterpret_cast<const char*>(&from), sizeof from);
  Block source;
  {
    const std::lock_guard lock(mutex_);
    source = source_of(from);
    if (const auto there = made_.find(key); source && there != made_.end() && there->second.source.lock() == source)
      if (Block block = there->second.block.lock()) return block;
  }
  Block block = keep(make());
  if (source) {
    source->release_pages();
    const std::lock_guard lock(mutex_);
    made_[std::move(key)] = {source, block};
  }
  return block;
}

Block MemoryPool::find(uint64_t key, Bytes bytes) {
  const std::lock_guard lock(mutex_);
  return locked_find(key, bytes);
}

Block MemoryPool::locked_find(uint64_t key, Bytes bytes) {
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

Block MemoryPool::add(uint64_t key, Block block) {
  const std::lock_guard lock(mutex_);
  // Another thread may have added the same bytes since the search before the lock.
  if (Block there = locked_find(key, {block->data(), block->size()})) return there;
  if (blocks_.size() >= sweep_at_) {
    std::erase_if(blocks_, [](const auto& item) { return item.second.expired(); });
    std::erase_if(copies_, [](const auto& item) { return item.second.expired(); });
    std::erase_if(made_, [](const auto& item) { return item.second.source.expired() || item.second.block.expired(); });
    sweep_at_ = 2 * blocks_.size() + 64;
  }
  blocks_.emplace(key, block);
  return block;
}

}  // namespace hexane
