#include "run/callers.h"

#include <algorithm>
#include <mutex>

namespace hexane::run {
namespace {

bool has_states(const plan::Plan& plan) {
  return std::any_of(plan.tensors.begin(), plan.tensors.end(),
                     [&](const PlanTensor& tensor) { return is_kind(plan, tensor, "state"); });
}

}  // namespace

Callers::Callers(std::shared_ptr<Context> first)
    : first_(std::move(first)),
      alike_(!has_states(first_->plan()) && !first_->image().calls_back() && first_->image().programs().empty()),
      others_(alike_ ? kMost - 1 : 0) {}

void Callers::limit(int most) { most_.store(std::clamp(most, 1, alike_ ? kMost : 1)); }

bool Callers::try_run(const Context::Ports& ports) { return first_->try_run(ports); }

void Callers::run(const Context::Ports& ports) {
  if (most_.load(std::memory_order_relaxed) == 1 || first_->is_profiling()) return first_->run(ports);
  if (first_->try_run(ports)) return;
  const int made = this->made();
  for (int i = 0; i < made - 1; ++i)
    if (others_[i]->try_run(ports)) return;
  if (Context* const context = another()) return context->run(ports);
  const uint32_t turn = next_.fetch_add(1, std::memory_order_relaxed) % static_cast<uint32_t>(made);
  return turn == 0 ? first_->run(ports) : others_[turn - 1]->run(ports);
}

Context* Callers::another() {
  const std::lock_guard lock(making_);
  const int made = this->made();
  if (made >= most_.load() || !first_->image().first_contents()) return nullptr;
  others_[made - 1] = first_->another();
  made_.store(made + 1, std::memory_order_release);
  return others_[made - 1].get();
}

}  // namespace hexane::run
