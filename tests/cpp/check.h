// The C++ tests' only tool: CHECK(condition) reports a failure with its place and goes on, main returns
// checks_failed().
#pragma once

#include <cstdio>

inline int num_failed_checks = 0;

inline void check(bool holds, const char* condition, const char* file, int line) {
  if (holds) return;
  std::fprintf(stderr, "%s:%d: CHECK failed: %s\n", file, line, condition);
  ++num_failed_checks;
}

#define CHECK(condition) check(static_cast<bool>(condition), #condition, __FILE__, __LINE__)

inline int checks_failed() { return num_failed_checks == 0 ? 0 : 1; }
