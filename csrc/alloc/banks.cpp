#include "alloc/banks.h"

#include <limits>
#include <numeric>

#include "core/error.h"

namespace hexane::alloc {
namespace {

bool is_power_of_two(int64_t x) { return x > 0 && (x & (x - 1)) == 0; }

void need_positive(const char* what, int64_t got) {
  if (got < 1 || got > (int64_t{1} << 40)) fail("banks", what, ": got ", got, ", need 1..2^40");
}

int64_t round_to(int64_t size, int64_t multiple) { return (size + multiple - 1) / multiple * multiple; }

}  // namespace

int64_t conflict_depth(const Banks& banks, int64_t rows, int64_t stride) {
  if (!is_power_of_two(banks.count) || !is_power_of_two(banks.bytes))
    fail("banks", "got ", banks.count, " banks of ", banks.bytes, " bytes, need powers of two");
  need_positive("rows", rows);
  if (stride < 0 || stride % banks.bytes) fail("banks", "stride: got ", stride, ", need a multiple of ", banks.bytes);
  const int64_t reached = banks.count / std::gcd(stride / banks.bytes, banks.count);
  return (rows + reached - 1) / reached;
}

int64_t choose_stride(const Banks& banks, int64_t rows, int64_t row_bytes, int64_t most) {
  need_positive("row bytes", row_bytes);
  const int64_t least =
      conflict_depth(banks, rows, banks.bytes);  // consecutive words use all banks before any bank twice
  const int64_t first = round_to(row_bytes, banks.bytes);
  if (first > most) fail("banks", "stride: got rows of ", row_bytes, " bytes, need at most ", most);
  int64_t best = first;
  for (int64_t stride = first; stride <= most; stride += banks.bytes) {
    if (conflict_depth(banks, rows, stride) < conflict_depth(banks, rows, best)) best = stride;
    if (conflict_depth(banks, rows, best) == least) break;
  }
  return best;
}

Pitch main_memory_pitch(int64_t row_bytes, int64_t rows, int64_t planes, int64_t row_alignment, int64_t page) {
  for (const auto& [what, got] :
       {std::pair("row bytes", row_bytes), std::pair("rows", rows), std::pair("planes", planes),
        std::pair("row alignment", row_alignment), std::pair("page", page)})
    need_positive(what, got);
  Pitch pitch;
  pitch.row = round_to(row_bytes, row_alignment);
  if (pitch.row > std::numeric_limits<int64_t>::max() / 4 / rows) fail("banks", "got a plane of more than 61 bits");
  pitch.plane = round_to(pitch.row * rows, row_alignment);
  if (pitch.plane > std::numeric_limits<int64_t>::max() / 4 / planes)
    fail("banks", "got a tensor of more than 61 bits");
  pitch.bytes = round_to(pitch.plane * planes, page);
  return pitch;
}

std::vector<Piece> concat_rows(std::span<const int64_t> row_bytes, int64_t granule) {
  need_positive("granule", granule);
  std::vector<Piece> pieces;
  int64_t offset = 0;
  for (size_t i = 0; i < row_bytes.size(); i++) {
    need_positive("row bytes", row_bytes[i]);
    const bool ends_whole = i + 1 == row_bytes.size() || (offset + row_bytes[i]) % granule == 0;
    pieces.push_back({offset, offset % granule == 0 && ends_whole});
    offset += row_bytes[i];
  }
  return pieces;
}

}  // namespace hexane::alloc
