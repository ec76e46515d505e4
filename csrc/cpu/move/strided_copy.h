// Copies a box of elements between two strided views. Transpose, slice, broadcast, concat, pad and reverse are strided
// copies.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hexane::cpu {

struct CopyAxis {
  int64_t extent;
  int64_t in;   // Input stride in bytes; may be 0 (broadcast) or negative (reversed).
  int64_t out;  // Output stride in bytes, positive.
};

// The plan of a copy: nested loops over the outer axes call a body, which copies the two innermost axes.
struct StridedCopy {
  using Body = void (*)(std::byte* out, const std::byte* in, const StridedCopy& copy);
  Body body;      // Null if no bytes are to be copied.
  int64_t unit;   // Bytes that are contiguous in input and output.
  CopyAxis rows;  // The two axes that the body copies.
  CopyAxis cols;
  int num_outer;
  CopyAxis outer[8];  // outermost first

  bool contiguous() const {
    return body && rows.extent == 1 && cols.extent == 1;
  }  // the copy is one run of `unit` bytes
};

// Plans a copy over `axes`, given in any order. No two elements of the output may share bytes.
StridedCopy plan_copy(const CopyAxis* axes, int num_axes, int64_t item_bytes);

void run_copy(const StridedCopy& copy, std::byte* out, const std::byte* in);

// Bodies for units of `bytes` bytes. units: any rows and columns. fill: columns repeat one unit, dense in the output.
// transpose: columns dense in the output and rows dense in the input; returns null for units without a body.
StridedCopy::Body units_body(int64_t bytes);
StridedCopy::Body fill_body(int64_t bytes);
StridedCopy::Body transpose_body(int64_t bytes);

// Copies one contiguous run. Short runs, which are common, avoid the call of memcpy.
inline void copy_run(std::byte* out, const std::byte* in, int64_t bytes) {
  auto move = [&](auto word) {  // copies the first and the last word, which may overlap
    decltype(word) first, last;
    __builtin_memcpy(&first, in, sizeof(word));
    __builtin_memcpy(&last, in + bytes - sizeof(word), sizeof(word));
    __builtin_memcpy(out, &first, sizeof(word));
    __builtin_memcpy(out + bytes - sizeof(word), &last, sizeof(word));
  };
  struct Word16 {
    uint64_t half[2];
  };
  struct Word32 {
    Word16 half[2];
  };
  if (bytes > 64) {
    __builtin_memcpy(out, in, static_cast<size_t>(bytes));
  } else if (bytes >= 32) {
    move(Word32{});
  } else if (bytes >= 16) {
    move(Word16{});
  } else if (bytes >= 8) {
    move(uint64_t{});
  } else if (bytes >= 4) {
    move(uint32_t{});
  } else if (bytes >= 2) {
    move(uint16_t{});
  } else if (bytes == 1) {
    *out = *in;
  }
}

}  // namespace hexane::cpu
