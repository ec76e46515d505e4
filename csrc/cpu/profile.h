// How long the steps of a program take, over many calls, as an observer of an executor sees them.
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
    int64_t median = 0;  // nanoseconds of the last calls, kSamples at most
  };
  Times of(size_t step) const;

  // When each step ran in the last call, in order of their begins.
  struct Span {
    size_t step;
    int64_t begin, end;  // nanoseconds of one clock
  };
  std::vector<Span> timeline() const;

 private:
  struct Samples {
    int64_t calls = 0;
    int64_t nanoseconds = 0;
    int64_t running = 0;        // nanoseconds of this call so far
    std::vector<int64_t> last;  // calls, the one with number n at n % kSamples
  };
  std::vector<Samples> steps_;
  std::vector<Span> timeline_;
};

}  // namespace hexane::cpu
