// Bounds-checked access to untrusted bytes. All parsers of files use these functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "core/error.h"

namespace hexane {

using Bytes = std::span<const std::byte>;

// Throws Error unless [offset, offset + count) lies inside `size`. `what` names the range. The check's own sums cannot
// overflow.
inline void check_range(const std::string& where, const char* what, uint64_t offset, uint64_t count, uint64_t size) {
  if (offset > size || count > size - offset)
    fail(where, what, ": got [", offset, ", +", count, "), need it inside [0, ", size, ")");
}

inline Bytes slice(const std::string& where, Bytes bytes, uint64_t offset, uint64_t count) {
  check_range(where, "bytes", offset, count, bytes.size());
  return bytes.subspan(offset, count);
}

// Returns a copy of the T at `offset`, which need not be aligned.
template <typename T>
T read(const std::string& where, Bytes bytes, uint64_t offset) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  std::memcpy(&value, slice(where, bytes, offset, sizeof(T)).data(), sizeof(T));
  return value;
}

// Returns `bytes` as an array of T, without a copy.
template <typename T>
std::span<const T> rows(const std::string& where, Bytes bytes) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (bytes.size() % sizeof(T)) fail(where, "got ", bytes.size(), " bytes, need a multiple of ", sizeof(T));
  if (reinterpret_cast<uintptr_t>(bytes.data()) % alignof(T))
    fail(where, "got rows at address ", bytes.data(), ", need it aligned to ", alignof(T), " bytes");
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}

// Returns the string that starts at `offset`. Throws Error if no zero byte ends it.
inline std::string_view terminated(const std::string& where, Bytes bytes, uint64_t offset) {
  if (offset >= bytes.size()) fail(where, "string: got offset ", offset, ", need less than ", bytes.size());
  const char* begin = reinterpret_cast<const char*>(bytes.data()) + offset;
  const void* end = std::memchr(begin, 0, bytes.size() - offset);
  if (!end) fail(where, "string at ", offset, ": got no terminating zero byte");
  return {begin, static_cast<size_t>(static_cast<const char*>(end) - begin)};
}

template <typename T>
Bytes bytes_of(std::span<const T> items) {
  return std::as_bytes(items);
}

}  // namespace hexane
