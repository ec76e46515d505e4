#include "core/fork_mutex.h"

#include <pthread.h>

#include <chrono>
#include <memory>
#include <utility>

namespace hexane {
namespace {

std::mutex all_mutex;
ForkMutex* all = nullptr;
std::atomic<bool> registered{false};

}  // namespace

ForkMutex::ForkMutex() {
  if (!registered.exchange(true)) pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  const std::lock_guard lock(all_mutex);
  next_ = all;
  link_ = &all;
  if (next_) next_->link_ = &next_;
  all = this;
}

ForkMutex::~ForkMutex() {
  const std::lock_guard lock(all_mutex);
  *link_ = next_;
  if (next_) next_->link_ = link_;
}

// Takes the newest mutex first: the holder of a mutex may wait for an older mutex, such as the pool's, never for a
// newer one.
void ForkMutex::before_fork() {
  all_mutex.lock();
  for (ForkMutex* each = all; each; each = each->next_)
    while (!(each->taken_ = each->mutex_.try_lock()) && each->waiting_.load() == std::thread::id())
      std::this_thread::sleep_for(std::chrono::microseconds(20));
}

void ForkMutex::after_fork_in_parent() {
  for (ForkMutex* each = all; each; each = each->next_)
    if (std::exchange(each->taken_, false)) each->mutex_.unlock();
  all_mutex.unlock();
}

void ForkMutex::after_fork_in_child() {
  for (ForkMutex* each = all; each; each = each->next_) {
    if (std::exchange(each->taken_, false)) {
      each->mutex_.unlock();
    } else if (each->waiting_.load() != std::this_thread::get_id()) {  // the holder is a thread of the parent only
      std::construct_at(&each->mutex_);
      each->waiting_ = std::thread::id();
    }
  }
  all_mutex.unlock();
}

}  // namespace hexane
