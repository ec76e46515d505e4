// The exceptions of the core. Each exception has a place (an op, a file, a section) and a message (got X, need Y).
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace hexane {

struct Error : std::runtime_error {
  explicit Error(const std::string& message) : std::runtime_error(message) {}
  Error(const std::string& where, const std::string& what) : std::runtime_error("[" + where + "] " + what) {}
};

// Thrown for an array that does not fit its input or output.
struct InputError : Error {
  using Error::Error;
};

// Builds the message of an Error from parts: fail("reader", "offset ", offset, " is past the end").
template <typename Kind = Error, typename... Parts>
[[noreturn]] void fail(const std::string& where, const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  throw Kind(where, message.str());
}

}  // namespace hexane
