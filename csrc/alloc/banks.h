// Memory in banks, and the bank conflicts of a stride: bank = (address / bank bytes) mod banks.
//
//    rows at a stride of 4 banks, 16 banks        g = gcd(4, 16) = 4: every row begins in one of 16 / 4 = 4 banks,
//    bank  0 . . . 4 . . . 8 . . . 12 . . .       so 8 rows read at once put two requests on each bank
//    row   0       1       2       3
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace hexane::alloc {

struct Banks {
  int64_t count = 0;  // Number of banks, a power of two.
  int64_t bytes = 0;  // Bytes of a bank's word.
};

// Returns the number of requests to the busiest bank if `rows` rows are read at once. stride: bytes, a multiple of a
// word.
int64_t conflict_depth(const Banks& banks, int64_t rows, int64_t stride);

// Returns the smallest stride with the least conflict depth, among multiples of a word from row_bytes up to `most`.
int64_t choose_stride(const Banks& banks, int64_t rows, int64_t row_bytes, int64_t most);

// A tensor in main memory: bytes from row to row and from plane to plane, and in total.
struct Pitch {
  int64_t row = 0, plane = 0, bytes = 0;
  bool operator==(const Pitch&) const = default;
};
Pitch main_memory_pitch(int64_t row_bytes, int64_t rows, int64_t planes, int64_t row_alignment, int64_t page);

// Concatenation along the rows: where in a row each operand begins, in bytes, and whether its producer can write to
// this place. Transfers move whole granules, so a producer writes its operand directly only if the operand begins at a
// granule, and ends at one or is the last. All other operands are copied to their places.
struct Piece {
  int64_t offset = 0;
  bool direct = false;
};
std::vector<Piece> concat_rows(std::span<const int64_t> row_bytes, int64_t granule);

}  // namespace hexane::alloc
