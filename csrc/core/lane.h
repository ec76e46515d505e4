// A thread that runs one function at a time while its caller continues, for work that waits for a device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace hexane {

int64_t now();  // nanoseconds of a monotonic clock

class Lane {
 public:
  Lane();
  ~Lane();  // waits for the running function
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Starts the function, which must live until wait() has returned. The lane must be idle. In a forked child, the lane
  // gets a new thread.
  void start(const std::function<void()>& work);
  // Returns at once if no function runs. Throws the function's exception.
  void wait();

  struct Span {
    int64_t begin = 0;
    int64_t end = 0;
  };
  Span last() const;  // the time of the last function that wait() waited for

 private:
  struct Thread;
  std::unique_ptr<Thread> thread_;
};

}  // namespace hexane
