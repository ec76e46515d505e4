#include "cpu/profile.h"

#include <algorithm>

namespace hexane::cpu {
namespace {

constexpr int64_t kSamples = 128;  // number of recent times kept for each step

}  // namespace

Profile::Profile(size_t num_steps) : steps_(num_steps) {
  for (Samples& step : steps_) step.last.resize(kSamples);
  timeline_.reserve(num_steps);
}

void Profile::begin_call() {
  timeline_.clear();
  for (Samples& step : steps_) step.running = 0;  // drops the times of a call that ended in an error
}

void Profile::add(const Ran& ran) {
  Samples& step = steps_[ran.step];
  step.running += ran.end - ran.begin;
  if (!ran.last) return;
  step.nanoseconds += step.running;
  step.last[static_cast<size_t>(step.calls++ % kSamples)] = step.running;
  timeline_.push_back({ran.step, ran.end - step.running, ran.end});
  step.running = 0;
}

Profile::Times Profile::of(size_t index) const {
  const Samples& step = steps_[index];
  std::vector<int64_t> samples = step.last;
  samples.resize(std::min(samples.size(), static_cast<size_t>(step.calls)));
  const auto middle = samples.begin() + static_cast<ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return {step.calls, step.nanoseconds, samples.empty() ? 0 : *middle};
}

std::vector<Profile::Span> Profile::timeline() const {
  std::vector<Span> result = timeline_;
  std::stable_sort(result.begin(), result.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  return result;
}

}  // namespace hexane::cpu
