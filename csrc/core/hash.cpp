#include "core/hash.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace hexane {
namespace {

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87u;
constexpr uint64_t kPrime2 = 0xC2B2AE3D27D4EB4Fu;
constexpr uint64_t kPrime3 = 0x165667B19E3779F9u;
constexpr uint64_t kPrime4 = 0x85EBCA77C2B2AE63u;
constexpr uint64_t kPrime5 = 0x27D4EB2F165667C5u;

template <typename T>
T load(const std::byte* p) {
  static_assert(std::endian::native == std::endian::little);
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

uint64_t round(uint64_t lane, uint64_t word) { return std::rotl(lane + word * kPrime2, 31) * kPrime1; }

uint64_t merge(uint64_t hash, uint64_t lane) { return (hash ^ round(0, lane)) * kPrime1 + kPrime4; }

uint64_t fmix(uint64_t h) {
  h = (h ^ (h >> 33)) * 0xff51afd7ed558ccdu;
  h = (h ^ (h >> 33)) * 0xc4ceb9fe1a85ec53u;
  return h ^ (h >> 33);
}

}  // namespace

Xxh64::Xxh64(uint64_t seed) : seed_(seed), lanes_{seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1} {}

void Xxh64::stripes(const std::byte* data, size_t count) {
  uint64_t a = lanes_[0], b = lanes_[1], c = lanes_[2], d = lanes_[3];
  for (; count; --count, data += 32) {
    a = round(a, load<uint64_t>(data));
    b = round(b, load<uint64_t>(data + 8));
    c = round(c, load<uint64_t>(data + 16));
    d = round(d, load<uint64_t>(data + 24));
  }
  lanes_[0] = a, lanes_[1] = b, lanes_[2] = c, lanes_[3] = d;
}

void Xxh64::update(Bytes bytes) {
  if (bytes.empty()) return;
  const size_t held = total_ % 32;
  total_ += bytes.size();
  if (held) {
    const size_t taken = std::min(32 - held, bytes.size());
    std::memcpy(tail_ + held, bytes.data(), taken);
    if (held + taken < 32) return;
    stripes(tail_, 1);
    bytes = bytes.subspan(taken);
  }
  stripes(bytes.data(), bytes.size() / 32);
  const Bytes rest = bytes.subspan(bytes.size() / 32 * 32);
  if (!rest.empty()) std::memcpy(tail_, rest.data(), rest.size());
}

uint64_t Xxh64::digest() const {
  uint64_t hash = seed_ + kPrime5;
  if (total_ >= 32) {
    hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) + std::rotl(lanes_[3], 18);
    for (const uint64_t lane : lanes_) hash = merge(hash, lane);
  }
  hash += total_;
  const std::byte* p = tail_;
  size_t left = total_ % 32;
  for (; left >= 8; left -= 8, p += 8) hash = std::rotl(hash ^ round(0, load<uint64_t>(p)), 27) * kPrime1 + kPrime4;
  for (; left >= 4; left -= 4, p += 4) hash = std::rotl(hash ^ load<uint32_t>(p) * kPrime1, 23) * kPrime2 + kPrime3;
  for (; left; --left, ++p) hash = std::rotl(hash ^ std::to_integer<uint64_t>(*p) * kPrime5, 11) * kPrime1;
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

uint64_t xxh64(Bytes bytes, uint64_t seed) {
  Xxh64 hash(seed);
  hash.update(bytes);
  return hash.digest();
}

std::array<uint64_t, 2> murmur3_128(Bytes bytes, uint64_t seed) {
  constexpr uint64_t c1 = 0x87c37b91114253d5u, c2 = 0x4cf5ad432745937fu;
  const auto mix1 = [](uint64_t k) { return std::rotl(k * c1, 31) * c2; };
  const auto mix2 = [](uint64_t k) { return std::rotl(k * c2, 33) * c1; };
  uint64_t h1 = seed, h2 = seed;
  const std::byte* p = bytes.data();
  for (size_t blocks = bytes.size() / 16; blocks; --blocks, p += 16) {
    h1 = (std::rotl(h1 ^ mix1(load<uint64_t>(p)), 27) + h2) * 5 + 0x52dce729;
    h2 = (std::rotl(h2 ^ mix2(load<uint64_t>(p + 8)), 31) + h1) * 5 + 0x38495ab5;
  }
  if (const size_t left = bytes.size() % 16) {
    std::byte tail[16] = {};
    std::memcpy(tail, p, left);
    h1 ^= mix1(load<uint64_t>(tail));
    h2 ^= mix2(load<uint64_t>(tail + 8));
  }
  h1 ^= bytes.size(), h2 ^= bytes.size();
  h1 += h2, h2 += h1;
  h1 = fmix(h1), h2 = fmix(h2);
  h1 += h2, h2 += h1;
  return {h1, h2};
}

}  // namespace hexane
