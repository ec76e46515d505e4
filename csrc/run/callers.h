// Contexts for simultaneous calls of one model: each call uses a free one. Contexts are made on demand, up to a
// limit; if all are busy, a call waits.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "core/fork_mutex.h"
#include "run/context.h"

namespace hexane::run {

class Callers {
 public:
  // With states, callbacks or surfaces all calls go to the first context, one after another.
  explicit Callers(std::shared_ptr<Context> first);

  // Limits the number of contexts, 1 or more; existing contexts stay.
  void limit(int most);
  int made() const { return made_.load(std::memory_order_acquire); }

  void run(const Context::Ports& ports);
  bool try_run(const Context::Ports& ports);  // false, without a run, if the first context is busy

 private:
  Context* another();  // a new context; null at the limit

  static constexpr int kMost = 256;
  const std::shared_ptr<Context> first_;
  const bool alike_;  // any context may run a call
  std::atomic<int> most_ = 1;
  std::atomic<int> made_ = 1;
  std::atomic<uint32_t> next_ = 0;                // The next context to wait for.
  std::vector<std::shared_ptr<Context>> others_;  // The first made() - 1 entries have a context.
  ForkMutex making_;
};

}  // namespace hexane::run
