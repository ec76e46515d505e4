// Two published hashes, written from their descriptions: XXH64 (checksum of plan files) and MurmurHash3 x64 128
// (identity of constants). XXH64 and MurmurHash3 do not resist an attacker: equality of constants is decided by their
// bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/bytes.h"

namespace hexane {

// XXH64 over bytes that arrive in pieces.
class Xxh64 {
 public:
  explicit Xxh64(uint64_t seed = 0);
  void update(Bytes bytes);
  uint64_t digest() const;

 private:
  void stripes(const std::byte* data, size_t count);

  uint64_t seed_;
  uint64_t lanes_[4];
  uint64_t total_ = 0;
  std::byte tail_[32];  // an unfinished stripe
};

uint64_t xxh64(Bytes bytes, uint64_t seed = 0);

std::array<uint64_t, 2> murmur3_128(Bytes bytes, uint64_t seed = 0);

}  // namespace hexane
