// Products of bf16 numbers with sums in fp32, for the tiles of gemm.h.
//
// An item of a row or of a panel is a pair: two terms adjacent in k, the first one in the low half. Rows and panels are
// rounded to bf16, to nearest even, when they are packed; a subnormal bf16 becomes 0. Zeros fill a segment of terms
// (gemm.h) up to whole pairs, and for the tiles of AMX up to whole blocks of 32 terms.
//
// A product of two bf16 is exact in fp32. There are two orders in which instructions add products:
//   chain   for each pair, the second product and then the first are added to the sum: AVX-512-BF16, and the code of
//           multiply-adds that replaces it. A sum of more than kShortSum terms is made of blocks (sums.h).
//   blocks  of 32 terms: a chain of the pairs' first products and a chain of their second products. The total of both
//           chains is added to the sum: AMX.
// AVX-512-BF16 and AMX treat numbers below 2^-126 as 0, sums included. The code that replaces AVX-512-BF16 keeps
// subnormal sums.
#pragma once

#include "cpu/matmul/gemm.h"

namespace hexane::cpu {

enum class Bf16Form {
  kPlain,     // Multiply-adds, fused or not: both give the same bits while no product leaves the range of fp32.
  kExtended,  // AVX-512-BF16.
  kAmx,
};

// Returns the arithmetic of this form, or null if the CPU or the operating system lacks it.
const Arithmetic* bf16_arithmetic(Bf16Form form);
// Returns the fastest form's arithmetic, unless a test has chosen another.
const Arithmetic& bf16_arithmetic();
bool is_bf16(const Arithmetic& arithmetic);

// ---- for tests ----

const char* bf16_form_name(Bf16Form form);
Bf16Form bf16_form();
// Makes calls that are prepared afterwards use this form. Returns false if the CPU lacks the form.
bool use_bf16_form(Bf16Form form);

// ---- AMX ----

inline constexpr int64_t kAmxRows = 16;   // Rows of a tile register.
inline constexpr int64_t kAmxPairs = 16;  // Pairs in a row of a tile.

inline constexpr int64_t kAmxRowBlocks = 2;
inline constexpr int64_t kAmxBlocks = 64;                        // Most blocks along a row in one call of add_amx().
inline constexpr int64_t kAmxPitch = kTilePanels * kPanelLanes;  // Floats from one row of sums to the next.

// Blocks of 16 rows by 16 pairs, in one or two rows of blocks. Column b of blocks is multiplied with rows 16 b to 16 b
// + 15 of the panels. In one row of blocks, a block may have fewer pairs: the number passed to begin_amx_tails().
struct AmxBlocks {
  const float* rows[kAmxRowBlocks][kAmxBlocks];  // The first row of each block.
  int64_t strides[kAmxRowBlocks][kAmxBlocks];    // Bytes from one row of a block to the next.
  bool is_tail[kAmxBlocks];                      // True for a block with fewer pairs.
  int row_blocks;
  int64_t count;
  const std::byte* panels;
  int64_t panel_bytes;
  int num_panels;
};
// Returns true if the CPU has bf16 tiles and this process may use them.
bool has_amx();
// A thread calls begin_amx() before its first product and end_amx() after its last one.
void begin_amx();
void end_amx();
// Sets the pairs of tails, 1 to 15, for the next sums of this thread, after begin_amx().
void begin_amx_tails(int64_t pairs);
// Adds products to the sums of 16 or 32 rows, [rows][kAmxPitch]; is_first starts with sums of zero. Sums of 16 rows
// stay in tile registers from the first to the last call, so no other sums may be computed between these calls.
void add_amx(const AmxBlocks& blocks, bool is_first, bool is_last, float* sums);

}  // namespace hexane::cpu
