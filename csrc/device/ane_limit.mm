// Calls of the framework that may never come back: drivers have been seen that do not signal completion. Each call runs
// on a thread of its own, and its caller stops waiting after a while. The thread then never frees the call's operands.
#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

#import "device/ane.h"

namespace hexane::ane {
namespace {

constexpr char kAdvice[] = "the engine's driver may hang: start a new process; if that fails too, restart the machine";

struct Runner {
  std::mutex mutex;
  std::condition_variable changed;
  enum { kIdle, kAsked, kDone, kAbandoned } state = kIdle;
  Call call;
  bool result = false;
  hexane_ane_error error;
  Runner* next = nullptr;  // next runner in the list of idle runners
};

// The list of idle runners. It is never freed, because their threads still exist when the process exits.
struct Idle {
  std::mutex mutex;
  Runner* first = nullptr;
};
Idle& idle() {
  static Idle* const all = new Idle;
  return *all;
}

void* work(void* given) {
  auto* runner = static_cast<Runner*>(given);
  std::unique_lock lock(runner->mutex);
  while (true) {
    runner->changed.wait(lock, [&] { return runner->state == Runner::kAsked; });
    const Call call = runner->call;
    lock.unlock();
    hexane_ane_error error = {};
    const bool result = guarded(&error, call.stage, [&] { return call.run(call.object, call.qos, &error); });
    lock.lock();
    if (runner->state == Runner::kAbandoned) break;
    runner->result = result;
    runner->error = error;
    runner->state = Runner::kDone;
    runner->changed.notify_one();
  }
  lock.unlock();
  delete runner;
  return nullptr;
}

Runner* idle_runner() {
  {
    const std::lock_guard lock(idle().mutex);
    if (Runner* found = idle().first) {
      idle().first = found->next;
      return found;
    }
  }
  auto* made = new Runner;
  pthread_t thread;
  if (pthread_create(&thread, nullptr, work, made) == 0) {
    pthread_detach(thread);
    return made;
  }
  delete made;
  return nullptr;
}

void give_back(Runner* runner) {
  const std::lock_guard lock(idle().mutex);
  runner->next = idle().first;
  idle().first = runner;
}

// Marks the error of a call that has not come back. Always returns false.
bool no_answer(hexane_ane_error* error) {
  error->code = HEXANE_ANE_NO_ANSWER;
  advise(error, kAdvice);
  return false;
}

}  // namespace

bool within(hexane_ane_program* program, const Call& call, hexane_ane_error* error) {
  if (program->stuck) {
    fail(error, call.stage, "an earlier call of this program has not come back");
    return no_answer(error);
  }
  Runner* runner = call.limit_ms ? idle_runner() : nullptr;
  if (!runner) return guarded(error, call.stage, [&] { return call.run(call.object, call.qos, error); });
  std::unique_lock lock(runner->mutex);
  runner->call = call;
  runner->state = Runner::kAsked;
  runner->changed.notify_one();
  const auto done = [&] { return runner->state == Runner::kDone; };
  if (!runner->changed.wait_for(lock, std::chrono::milliseconds(call.limit_ms), done)) {
    program->stuck = true;
    runner->state = Runner::kAbandoned;
    fail(error, call.stage, "the framework has not come back within %g s", call.limit_ms / 1000.0);
    return no_answer(error);
  }
  const bool result = runner->result;
  if (!result) *error = runner->error;
  runner->state = Runner::kIdle;
  lock.unlock();
  give_back(runner);
  return result;
}

}  // namespace hexane::ane
