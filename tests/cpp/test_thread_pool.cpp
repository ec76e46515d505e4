// The thread pool: every index once, errors arrive, one lease at a time. A test in Python shows that a forked
// child has a pool of its own: under qemu and ThreadSanitizer a forked child cannot start threads.
#include "core/thread_pool.h"

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "core/error.h"

using hexane::ThreadPool;

namespace {

// Sums 0 .. count-1, the workers taking indices from a counter.
int64_t sum(const ThreadPool::Lease& lease, int64_t count) {
  std::atomic<int64_t> next{0};
  std::vector<int64_t> sums(ThreadPool::kMostThreads);  // one for each worker: written without a lock
  lease.run([&](int worker) {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) sums[static_cast<size_t>(worker)] += i;
  });
  int64_t total = 0;
  for (const int64_t part : sums) total += part;
  return total;
}

void every_index_is_done_once() {
  for (const int threads : {2, 3, 8}) {
    const auto lease = ThreadPool::of_process().try_lease(threads);
    CHECK(lease);
    for (int64_t count = 0; count < 2000; ++count) CHECK(sum(lease, count) == count * (count - 1) / 2);
  }
}

void sleeping_workers_wake_up() {
  const auto lease = ThreadPool::of_process().try_lease(2);
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::atomic<bool> met{false};  // the caller waits for the other worker: it has to come
    lease.run([&](int worker) {
      if (worker != 0) met = true;
      while (!met) std::this_thread::yield();
    });
    CHECK(met);
  }
}

void an_error_in_a_worker_arrives() {
  const auto lease = ThreadPool::of_process().try_lease(4);
  std::string message;
  try {
    lease.run([](int) { hexane::fail("gather", "index: got 9, need less than 8"); });
  } catch (const hexane::Error& error) {
    message = error.what();
  }
  CHECK(message == "[gather] index: got 9, need less than 8");
  CHECK(sum(lease, 100) == 4950);
}

void only_one_thread_has_the_pool() {
  ThreadPool& pool = ThreadPool::of_process();
  CHECK(!pool.try_lease(1));
  {
    const auto lease = pool.try_lease(2);
    std::thread([&] { CHECK(!pool.try_lease(2)); }).join();
  }
  CHECK(pool.try_lease(2));
}

void many_threads_compete() {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i)
        if (const auto lease = ThreadPool::of_process().try_lease(3))
          if (sum(lease, 64) != 2016) ++wrong;
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

}  // namespace

int main() {
  every_index_is_done_once();
  sleeping_workers_wake_up();
  an_error_in_a_worker_arrives();
  only_one_thread_has_the_pool();
  many_threads_compete();
  return checks_failed();
}
