// Blocks of bytes that never change, each kept once: programs that are compiled from one model for several shapes share
// their weights, and what kernels pack of them. Blocks compare by their bytes; one lives as long as somebody holds it.
#pragma once

#include <memory>
#include <unordered_map>

#include "core/bytes.h"
#include "core/fork_mutex.h"
#include "core/memory.h"

namespace hexane {

using Block = std::shared_ptr<const Memory>;

class MemoryPool {
 public:
  Block keep(Memory memory);  // this memory, or the block that has its bytes
  Block copy(Bytes bytes);    // a copy, or the block that has these bytes

 private:
  Block find(uint64_t key, Bytes bytes);
  Block add(uint64_t key, Memory memory);

  ForkMutex mutex_;
  std::unordered_multimap<uint64_t, std::weak_ptr<const Memory>> blocks_;  // by a hash of the bytes
  size_t sweep_at_ = 64;  // at this number of entries, those of freed blocks are removed
};

}  // namespace hexane
