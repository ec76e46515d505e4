// Rows of an encoded weight, decoded in place, for kernels that do not pack the weight.
#pragma once

#include <algorithm>

#include "cpu/matmul/encoded.h"

namespace hexane::cpu {

inline constexpr int64_t kDecodedAtOnce = 1024;  // Codes of four bits that one call unpacks to bytes; even.

// How the rows of a weight are stored. A row is a column of encoded_matmul's product.
struct EncodedRows {
  int64_t block;       // Terms that share a scale.
  int64_t table_rows;  // Rows that share a table.
  int64_t vector;      // Rows that share a row of codes.
  bool four_bits, palette;
};

inline EncodedRows encoded_rows(const EncodedPanels& e, const Tensor& numbers) {
  const int64_t table_rows = e.columns / std::max<int64_t>(numbers.shape[0], 1);
  return {e.block, std::max<int64_t>(table_rows, 1), e.vector, e.four_bits, e.palette};
}

// Decodes one row. weight and numbers have to be dense.
class EncodedRow {
 public:
  EncodedRow(const EncodedRows& rows, const Tensor& weight, const Tensor& numbers, int64_t row)
      : rows_(rows),
        codes_(weight.as<const uint8_t>() + row / rows.vector * weight.shape[1]),
        width_(numbers.shape[1]),
        numbers_(numbers.as<const float>() +
                 (rows.palette ? row / rows.table_rows * width_ * rows.vector + row % rows.vector : row)) {}

  // Decodes the terms [begin, begin + count) to floats. begin has to be even.
  void decode(int64_t begin, int64_t count, float* to) const {
    for (const int64_t end = begin + count; begin < end;) {
      const int64_t room = rows_.palette ? kDecodedAtOnce : rows_.block - begin % rows_.block;
      const int64_t some = std::min({kDecodedAtOnce, room, end - begin});
      uint8_t spread[kDecodedAtOnce];
      const uint8_t* codes = codes_of(begin, some, spread);
      if (rows_.palette)
        look_up(codes, some, to);
      else
        encoded_ops().integers(codes, some, rows_.four_bits, numbers_[begin / rows_.block * width_], to);
      begin += some;
      to += some;
    }
  }

 private:
  // Looks up codes in the row's table. An index beyond the table selects the last entry.
  void look_up(const uint8_t* codes, int64_t count, float* to) const {
    const int64_t last = width_ - 1;
    if (rows_.vector == 1)
      for (int64_t i = 0; i < count; ++i) to[i] = numbers_[std::min<int64_t>(codes[i], last)];
    else
      for (int64_t i = 0; i < count; ++i) to[i] = numbers_[std::min<int64_t>(codes[i], last) * rows_.vector];
  }

  // Returns the codes with one code per byte, unpacked to `spread` if they have four bits.
  const uint8_t* codes_of(int64_t begin, int64_t count, uint8_t* spread) const {
    if (!rows_.four_bits) return codes_ + begin;
    const uint8_t* from = codes_ + begin / 2;
    for (int64_t i = 0; i < count / 2; ++i) {
      spread[2 * i] = from[i] & 15;
      spread[2 * i + 1] = from[i] >> 4;
    }
    if (count % 2) spread[count - 1] = from[count / 2] & 15;
    return spread;
  }

  const EncodedRows& rows_;
  const uint8_t* codes_;
  int64_t width_;         // Columns of `numbers`: scales of one block of terms, or entries of a table.
  const float* numbers_;  // The scale of the row's first block, or the row's number in the first entry of its table.
};

}  // namespace hexane::cpu
