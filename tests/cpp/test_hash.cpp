// The hashes against published values, and XXH64 in pieces against itself in one.
#include "core/hash.h"

#include <string_view>
#include <vector>

#include "check.h"

using namespace hexane;

namespace {

Bytes bytes(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

}  // namespace

int main() {
  CHECK(xxh64(bytes("")) == 0xef46db3751d8e999u);
  CHECK(xxh64(bytes("abc")) == 0x44bc2cf5ad770999u);
  CHECK(xxh64(bytes("Nobody inspects the spammish repetition")) == 0xfbcea83c8a378bf1u);
  CHECK((murmur3_128(bytes("hello")) == std::array<uint64_t, 2>{0xcbd8a7b341bd9b02u, 0x5b1e906a48ae1d19u}));
  CHECK((murmur3_128(bytes("")) == std::array<uint64_t, 2>{0, 0}));

  std::vector<std::byte> data(200);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 37);
  const Bytes all(data);
  for (size_t first = 0; first <= data.size(); first += 7)
    for (size_t second = first; second <= data.size(); second += 5) {
      Xxh64 hash;
      hash.update(all.first(first));
      hash.update(all.subspan(first, second - first));
      hash.update(all.subspan(second));
      CHECK(hash.digest() == xxh64(all));
    }
  return checks_failed();
}
