// An error's text: the place in brackets, then what was wrong, with both numbers.
#include "core/error.h"

#include <string>

#include "check.h"

int main() {
  std::string message;
  try {
    hexane::fail("reader", "offset: got ", 72, ", need at most ", 64);
  } catch (const hexane::Error& error) {
    message = error.what();
  }
  CHECK(message == "[reader] offset: got 72, need at most 64");
  return checks_failed();
}
