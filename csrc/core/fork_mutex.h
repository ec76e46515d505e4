// A mutex that a fork of the process waits for. A fork takes all mutexes of this class first, and releases them
// afterwards in the parent and in the child. So the data that the mutexes guard is consistent in the child, and no
// thread that exists only in the parent holds a lock.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>

namespace hexane {

class ForkMutex {
 public:
  ForkMutex();
  ~ForkMutex();
  ForkMutex(const ForkMutex&) = delete;
  ForkMutex& operator=(const ForkMutex&) = delete;

  void lock() { mutex_.lock(); }
  bool try_lock() { return mutex_.try_lock(); }
  void unlock() { mutex_.unlock(); }

  // A holder marks the time during which it waits for other threads, perhaps for the forking one. Forks do not wait for
  // the holder during this time. In the child the mutex is free, unless the holder itself forks.
  class Waiting {
   public:
    explicit Waiting(ForkMutex& mutex) : mutex_(mutex) { mutex_.waiting_ = std::this_thread::get_id(); }
    ~Waiting() { mutex_.waiting_ = std::thread::id(); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    ForkMutex& mutex_;
  };

 private:
  static void before_fork();
  static void after_fork_in_parent();
  static void after_fork_in_child();

  std::mutex mutex_;
  std::atomic<std::thread::id> waiting_{};  // The holder's thread, while forks do not wait for it.
  bool taken_ = false;                      // Whether a fork holds the mutex.
  ForkMutex* next_;                         // Next in the list of all mutexes, which has its own lock.
  ForkMutex** link_;                        // The list's pointer to this mutex.
};

}  // namespace hexane
