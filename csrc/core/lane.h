// A second thread, which runs one function at a time while the caller goes on: for work that waits for a device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace hexane {

int64_t now();  // nanoseconds of a clock that never goes back

class Lane {
 public:
  Lane();
  ~Lane();  // waits for what runs
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // The function has to live until it has been waited for, and nothing may run. In a forked process, which has no part
  // in the thread, a thread of its own takes its place.
  void start(const std::function<void()>& work);
  // Returns at once where nothing runs. Throws the function's exception.
  void wait();

  struct Span {
    int64_t begin = 0;
    int64_t end = 0;
  };
  Span last() const;  // when the function ran that was waited for last

 private:
  struct Thread;
  std::unique_ptr<Thread> thread_;
};

}  // namespace hexane
