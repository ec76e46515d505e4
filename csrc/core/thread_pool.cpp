#include "core/thread_pool.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>

namespace hexane {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kSpin = std::chrono::microseconds(50);

constexpr uint64_t kPlace = uint64_t{1} << 16;
constexpr uint64_t kPlaces = 0xffff * kPlace;
constexpr uint64_t kInside = 0xffff;

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until done() or until the time is up, and returns whether done() became true.
template <typename Done>
bool spin_until(Done done) {
  const auto end = Clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
      pause_cpu();
    }
  } while (Clock::now() < end);
  return false;
}

// The pool is never destroyed: its workers run until the process ends.
std::atomic<ThreadPool*> process_pool{nullptr};

}  // namespace

ThreadPool& ThreadPool::of_process() {
  if (ThreadPool* pool = process_pool.load(std::memory_order_acquire)) return *pool;
  // A forked child has none of its parent's threads, and perhaps locks that no thread will release, so it gets a new
  // pool. This function takes no lock either: another thread could hold the lock when the process forks.
  static std::atomic<bool> registered{false};
  if (!registered.exchange(true)) pthread_atfork(nullptr, nullptr, [] { process_pool.store(nullptr); });
  auto pool = std::make_unique<ThreadPool>();
  ThreadPool* there = nullptr;
  return process_pool.compare_exchange_strong(there, pool.get(), std::memory_order_acq_rel) ? *pool.release() : *there;
}

ThreadPool::Lease ThreadPool::try_lease(int threads) {
  threads = std::min(threads, kMostThreads);
  if (threads < 2 || !leased_.try_lock()) return {};
  try {
    for (; num_workers_ < threads - 1; ++num_workers_) std::thread(&ThreadPool::work, this).detach();
  } catch (...) {
    leased_.unlock();  // the system refuses more threads: the caller works alone
    return {};
  }
  return {this, threads};
}

void ThreadPool::run(int helpers, Function function, void* context) {
  function_ = function;
  context_ = context;
  const uint64_t job = (word_.load(std::memory_order_relaxed) >> 32) + 1;
  word_.store(job << 32 | static_cast<uint64_t>(helpers) * kPlace, std::memory_order_release);
  // A wake-up is a system call, so each sleeper is woken once, however long it takes to run. A worker that went to
  // sleep before this job waits for the change of the job's number. A worker that falls asleep while the number changes
  // may miss the change, so the worker is woken again.
  const uint32_t asleep = sleepers_.load();
  started_.fetch_add(1);
  if (sleepers_.load() != called_) {
    started_.notify_all();
    called_ = asleep;
  }
  call(0);
  const auto nobody_inside = [this] { return (word_.load(std::memory_order_acquire) & kInside) == 0; };
  word_.fetch_and(~kPlaces, std::memory_order_acq_rel);
  if (!spin_until(nobody_inside))
    while (!nobody_inside()) std::this_thread::yield();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::call(int worker) {
  try {
    function_(context_, worker);
  } catch (...) {
    const std::lock_guard lock(error_mutex_);
    if (!error_) error_ = std::current_exception();
  }
}

void ThreadPool::work() {
  uint64_t last_job = 0;
  for (;;) {
    const uint32_t seen = started_.load(std::memory_order_acquire);
    uint64_t word = word_.load(std::memory_order_acquire);
    while (word >> 32 != last_job && (word & kPlaces)) {
      if (!word_.compare_exchange_weak(word, word - kPlace + 1, std::memory_order_acq_rel)) continue;
      last_job = word >> 32;
      call(static_cast<int>((word & kPlaces) / kPlace));
      word = word_.fetch_sub(1, std::memory_order_acq_rel) - 1;
    }
    const auto changed = [&] { return started_.load(std::memory_order_acquire) != seen; };
    if (spin_until(changed)) continue;
    sleepers_.fetch_add(1);
    started_.wait(seen);
  }
}

}  // namespace hexane
