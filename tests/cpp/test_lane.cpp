// The lane: what is started runs beside the caller, and its errors arrive where it is waited for.
#include "core/lane.h"

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "check.h"
#include "core/error.h"

using hexane::Lane;

namespace {

void work_runs_beside_the_caller() {
  Lane lane;
  std::atomic<bool> allowed{false};
  std::thread::id where;
  const std::function<void()> work = [&] {
    where = std::this_thread::get_id();
    while (!allowed) std::this_thread::yield();  // ends only if the caller went on meanwhile
  };
  for (int i = 0; i < 100; ++i) {
    allowed = false;
    lane.start(work);
    allowed = true;
    lane.wait();
    CHECK(where != std::this_thread::get_id());
    CHECK(lane.last().begin <= lane.last().end);
  }
}

void what_is_written_is_seen_after_the_wait() {
  Lane lane;
  int number = 0;
  const std::function<void()> work = [&] { ++number; };
  for (int i = 1; i <= 1000; ++i) {
    lane.start(work);
    lane.wait();
    CHECK(number == i);
  }
  lane.wait();  // nothing runs
}

void errors_are_thrown_where_it_is_waited_for() {
  Lane lane;
  const std::function<void()> fails = [] { hexane::fail("test", "got nothing"); };
  const std::function<void()> works = [] {};
  for (int i = 0; i < 3; ++i) {
    lane.start(fails);
    std::string message;
    try {
      lane.wait();
    } catch (const hexane::Error& error) {
      message = error.what();
    }
    CHECK(message == "[test] got nothing");
    lane.start(works);
    lane.wait();  // the error was told once
  }
}

void it_ends_with_what_runs() {
  std::atomic<int> done{0};
  const std::function<void()> work = [&] { ++done; };
  for (int i = 0; i < 50; ++i) {
    Lane lane;
    lane.start(work);
  }
  CHECK(done == 50);
}

}  // namespace

int main() {
  work_runs_beside_the_caller();
  what_is_written_is_seen_after_the_wait();
  errors_are_thrown_where_it_is_waited_for();
  it_ends_with_what_runs();
  return checks_failed();
}
