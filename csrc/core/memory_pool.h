// Immutable blocks of bytes, each kept once: programs of one model for several shapes share their weights, and the
// packed copies of kernels. Blocks are compared by their bytes. A block lives as long as it has an owner.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "core/bytes.h"
#include "core/fork_mutex.h"
#include "core/memory.h"

namespace hexane {

using Block = std::shared_ptr<const Memory>;

// Returns zeroed memory, and its address as bytes to write. copy() of exactly this block keeps the block itself.
// Nobody may write to it from then on.
std::pair<Block, std::byte*> writable_block(uint64_t bytes, const std::string& what);

class MemoryPool {
 public:
  Block keep(Memory memory);  // Returns `memory`, or the kept block with equal bytes.
  // Returns a copy of `bytes`, or the kept block with equal bytes. A whole writable_block() is kept without a copy.
  Block copy(Bytes bytes);
  // Like copy(), but the block refers to the mapped file. map() and made_of() release the memory of its pages.
  Block map(Bytes part, std::shared_ptr<const FileMapping> file);
  // Returns the number of holders of the pool's block that contains this address, or 0.
  long holders(const std::byte* from) const;
  // Returns the result of `make`, which reads the bytes at `from`. If `from` lies in a block of copy() or map(), the
  // pool keeps the result: `make` runs once for each `key` as long as that block and the result have owners. The key
  // identifies all inputs of `make` other than the bytes.
  Block made_of(const std::byte* from, std::string key, const std::function<Memory()>& make);

 private:
  struct Made {
    std::weak_ptr<const Memory> source, block;
  };

  Block weights(Bytes bytes, const std::function<Block()>& make);
  Block find(uint64_t key, Bytes bytes);
  Block locked_find(uint64_t key, Bytes bytes);
  Block add(uint64_t key, Block block);  // returns `block`, or the kept block with equal bytes
  Block source_of(const std::byte* from) const;

  mutable ForkMutex mutex_;
  std::unordered_multimap<uint64_t, std::weak_ptr<const Memory>> blocks_;  // Blocks by a hash of their bytes.
  std::map<const std::byte*, std::weak_ptr<const Memory>> copies_;         // Copies by their first byte.
  std::unordered_map<std::string, Made> made_;
  size_t sweep_at_ = 64;  // number of entries at which expired entries are removed
};

}  // namespace hexane
