// How hard the solver tries. The tricks are named so that a test can switch each off and see what it is worth; none
// changes what is a correct answer.
#pragma once

#include <cstdint>

namespace hexane::alloc {

struct Options {
  // Looks at an item in a section before the search gives up. Unlike time it is the same on every machine.
  int64_t work_budget = 100'000'000;

  bool split = true;  // pack parts of the timeline that no waiting item joins one by one, never redoing a finished part
  bool support =
      true;  // an item refused at its lowest place must lie on another waiting item: lift it to the lowest such top
  bool stack = true;    // of two items with one span, one upon the other, keep the better ranked below
  bool learn = true;    // sections that caused many failures are decided earlier
  bool restart = true;  // start again with other ranks after a while, so that no early mistake costs the whole budget
};

}  // namespace hexane::alloc
