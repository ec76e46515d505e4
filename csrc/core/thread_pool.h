// The worker threads of the process. One run at a time leases the workers; other runs use only their own thread.
// Workers spin for a moment after a job, then sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <type_traits>
#include <utility>

namespace hexane {

class ThreadPool {
 public:
  static constexpr int kMostThreads = 256;

  // The pool of this process; a forked child gets a new one.
  static ThreadPool& of_process();

  // The exclusive right to start jobs, for the lifetime of this object.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)), threads_(other.threads_) {}
    Lease& operator=(Lease&&) = delete;
    ~Lease() {
      if (pool_) pool_->leased_.unlock();
    }
    explicit operator bool() const { return pool_ != nullptr; }

    // Calls body(worker) on this thread as worker 0 and on at most threads - 1 other threads as workers 1, 2, ...;
    // returns when all these calls have returned. A worker that wakes up too late does not take part, so a body must
    // fetch its work from a shared counter. Throws the first exception of any worker.
    template <typename Body>
    void run(Body&& body) const {
      pool_->run(
          threads_ - 1,
          [](void* context, int worker) { (*static_cast<std::remove_reference_t<Body>*>(context))(worker); }, &body);
    }

   private:
    friend ThreadPool;
    Lease(ThreadPool* pool, int threads) : pool_(pool), threads_(threads) {}
    ThreadPool* pool_ = nullptr;
    int threads_ = 1;
  };

  // Returns an empty lease if another thread has the pool.
  Lease try_lease(int threads);

  // Marks the owner as one of several simultaneous runs, as long as this object lives. Simultaneous runs share the
  // cores: each run uses one thread fewer for every other run.
  class Caller {
   public:
    explicit Caller(ThreadPool& pool) : pool_(pool), others_(pool.callers_.fetch_add(1, std::memory_order_relaxed)) {}
    Caller(const Caller&) = delete;
    Caller& operator=(const Caller&) = delete;
    ~Caller() { pool_.callers_.fetch_sub(1, std::memory_order_relaxed); }
    Lease try_lease(int threads) const { return pool_.try_lease(threads - others_); }

   private:
    ThreadPool& pool_;
    const int others_;
  };

 private:
  using Function = void (*)(void* context, int worker);

  void run(int helpers, Function function, void* context);
  void work();
  void call(int worker);

  // A worker enters a job by this one word: the job's number << 32 | free places << 16 | workers inside. The caller
  // closes a job by taking the free places away and waits until no worker is inside.
  std::atomic<uint64_t> word_{0};
  std::atomic<uint32_t> started_{0};   // Counts jobs; sleeping workers wait for it to change.
  std::atomic<uint32_t> sleepers_{0};  // Counts how often a worker went to sleep.
  uint32_t called_ = 0;                // The value of sleepers_ at the last wake-up; guarded by leased_.
  Function function_ = nullptr;  // The job's function; written only while no thread is in the job or can enter it.
  void* context_ = nullptr;
  std::atomic<int> callers_{0};
  std::mutex leased_;
  int num_workers_ = 0;  // guarded by leased_
  std::mutex error_mutex_;
  std::exception_ptr error_;
};

}  // namespace hexane
