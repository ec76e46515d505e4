#include "core/lane.h"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace hexane {

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct Lane::Thread {
  std::mutex mutex;
  std::condition_variable changed;
  const std::function<void()>* work = nullptr;  // the function that runs or will run next
  bool ends = false;
  std::exception_ptr error;
  Span span;
  const pid_t process = ::getpid();
  std::thread thread{[this] { loop(); }};

  void loop() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return work || ends; });
      if (!work) return;
      lock.unlock();
      Span own{now(), 0};
      std::exception_ptr thrown;
      try {
        (*work)();
      } catch (...) {
        thrown = std::current_exception();
      }
      own.end = now();
      lock.lock();
      span = own;
      error = std::move(thrown);
      work = nullptr;
      changed.notify_all();
    }
  }
};

Lane::Lane() : thread_(std::make_unique<Thread>()) {}

Lane::~Lane() {
  if (thread_->process != ::getpid()) {
    (void)thread_.release();  // the thread belongs to the parent process and cannot be joined
    return;
  }
  {
    const std::lock_guard lock(thread_->mutex);
    thread_->ends = true;
    thread_->changed.notify_all();
  }
  thread_->thread.join();
}

void Lane::start(const std::function<void()>& work) {
  if (thread_->process != ::getpid()) {
    (void)thread_.release();
    thread_ = std::make_unique<Thread>();
  }
  const std::lock_guard lock(thread_->mutex);
  thread_->work = &work;
  thread_->changed.notify_all();
}

void Lane::wait() {
  std::unique_lock lock(thread_->mutex);
  thread_->changed.wait(lock, [&] { return !thread_->work; });
  if (thread_->error) std::rethrow_exception(std::exchange(thread_->error, nullptr));
}

Lane::Span Lane::last() const { return thread_->span; }

}  // namespace hexane
