// Memory that lies in banks, and what strides do to it: bank = (address / bank bytes) mod banks.
//
//    rows at a stride of 4 banks, 16 banks        g = gcd(4, 16) = 4: every row begins in one of 16 / 4 = 4 banks,
//    bank  0 . . . 4 . . . 8 . . . 12 . . .       so of 8 rows that are read at once two meet in a bank
//    row   0       1       2       3
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace hexane::alloc {

struct Banks {
  int64_t count = 0;  // a power of two
  int64_t bytes = 0;  // of one bank's word
};

// Requests that the fullest bank gets when `rows` rows at a stride (bytes, a multiple of a word) are read at once.
int64_t conflict_depth(const Banks& banks, int64_t rows, int64_t stride);

// The smallest stride of least depth, walked word by word from the row's own bytes up to `most`.
int64_t choose_stride(const Banks& banks, int64_t rows, int64_t row_bytes, int64_t most);

// A tensor in main memory: bytes from row to row and from plane to plane, and of the whole.
struct Pitch {
  int64_t row = 0, plane = 0, bytes = 0;
  bool operator==(const Pitch&) const = default;
};
Pitch main_memory_pitch(int64_t row_bytes, int64_t rows, int64_t planes, int64_t row_alignment, int64_t page);

// Concatenation along the rows: the byte in a row at which each operand begins, and whether it can be written there
// directly. Transfers move whole granules, so an operand that begins or, but for the last, ends inside one is copied.
struct Piece {
  int64_t offset = 0;
  bool direct = false;
};
std::vector<Piece> concat_rows(std::span<const int64_t> row_bytes, int64_t granule);

}  // namespace hexane::alloc
