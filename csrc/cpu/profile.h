// Measures how long each step of a program takes over many calls. The measurements come from an executor's Observer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/executor.h"

namespace hexane::cpu {

class Profile {
 public:
  explicit Profile(size_t num_steps);

  void begin_call();
  void add(const Ran& ran);

  struct Times {
    int64_t calls = 0;
    int64_t nanoseconds = 0;
    int64_t median = 0;  // median nanoseconds of the last calls, at most kSamples of them
  };
  Times of(size_t step) const;

  // One run of a step in the last call. timeline() is ordered by `begin`.
  struct Span {
    size_t step;
    int64_t begin, end;  // nanoseconds of one clock
  };
  std::vector<Span> timeline() const;

 private:
  struct Samples {
    int64_t calls = 0;
    int64_t nanoseconds = 0;
    int64_t running = 0;        // Nanoseconds in the current call.
    std::vector<int64_t> last;  // Nanoseconds of recent calls; call n is at n % kSamples.
  };
  std::vector<Samples> steps_;
  std::vector<Span> timeline_;
};

}  // namespace hexane::cpu
