// The one exception of the core: where it happened (an op, a file, a section) and what was wrong (got X, need Y).
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace hexane {

struct Error : std::runtime_error {
  explicit Error(const std::string& message) : std::runtime_error(message) {}
  Error(const std::string& where, const std::string& what) : std::runtime_error("[" + where + "] " + what) {}
};

// Builds the message of an Error from parts: fail("reader", "offset ", offset, " is past the end").
template <typename... Parts>
[[noreturn]] void fail(const std::string& where, const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  throw Error(where, message.str());
}

}  // namespace hexane
