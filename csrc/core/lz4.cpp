// A block is a list of sequences: a token (two lengths of 4 bits), literals, and a match: how far back, and its length.
// A length of 15 continues in the next bytes, up to the first byte below 255. The last sequence has no match.
#include "core/lz4.h"

#include <algorithm>

namespace hexane {
namespace {

constexpr uint64_t kLeastMatch = 4;

class Reader {
 public:
  Reader(const std::string& where, Bytes bytes) : where_(where), bytes_(bytes) {}

  bool at_end() const { return at_ == bytes_.size(); }

  Bytes take(uint64_t count) {
    const Bytes taken = slice(where_, bytes_, at_, count);
    at_ += count;
    return taken;
  }

  uint64_t byte() { return std::to_integer<uint64_t>(take(1)[0]); }

  uint64_t length(uint64_t four_bits) {
    if (four_bits < 15) return four_bits;
    uint64_t more, length = four_bits;
    do length += more = byte();
    while (more == 255);
    return length;
  }

 private:
  const std::string& where_;
  const Bytes bytes_;
  uint64_t at_ = 0;
};

}  // namespace

void lz4_unpack(const std::string& where, Bytes packed, std::span<std::byte> out) {
  Reader in(where, packed);
  uint64_t at = 0;
  for (;;) {
    const uint64_t token = in.byte();
    const Bytes literals = in.take(in.length(token >> 4));
    check_range(where, "literals", at, literals.size(), out.size());
    std::copy(literals.begin(), literals.end(), out.begin() + static_cast<ptrdiff_t>(at));
    at += literals.size();
    if (in.at_end()) break;
    const uint64_t low = in.byte(), back = low | in.byte() << 8;
    if (back == 0 || back > at) fail(where, "match: got ", back, " bytes back at byte ", at, ", need 1 to ", at);
    const uint64_t length = in.length(token & 15) + kLeastMatch;
    check_range(where, "match", at, length, out.size());
    for (const uint64_t end = at + length; at < end; ++at)
      out[at] = out[at - back];  // a match may overlap its own output
  }
  if (at != out.size()) fail(where, "got ", at, " bytes, need ", out.size());
}

}  // namespace hexane
