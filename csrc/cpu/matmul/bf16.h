// Products of bf16 numbers with sums in fp32, for the tiles of gemm.h.
//
// An item of a row or of a panel is a pair: two terms that follow each other in k, the first one in the low half. Both
// operands are rounded to bf16, to nearest even, when they are packed; a subnormal bf16 becomes 0. Zeros fill a segment
// of terms (gemm.h) up to whole pairs, and for the tiles of AMX up to whole blocks of 32 terms.
//
// A product of two bf16 is exact in fp32. There are two orders in which instructions add them:
//   chain   for each pair, the second product and then the first is added to the sum: AVX-512-BF16, and the
//           code in its place. A sum of more than kShortSum terms is made of blocks (sums.h).
//   blocks  of 32 terms: the first products of its pairs in a chain, the second ones in another, and the sum of both is
//           added to the sum: AMX.
// Both instructions take numbers below 2^-126 for 0, sums included; the code that stands for the first keeps such sums.
#pragma once

#include "cpu/matmul/gemm.h"

namespace hexane::cpu {

enum class Bf16Form {
  kPlain,     // by multiply-adds, fused or not: the bits are the same while no product leaves the range of fp32
  kExtended,  // AVX-512-BF16
  kAmx,
};

// The arithmetic of this form, or null if this CPU, or its system, does not have it.
const Arithmetic* bf16_arithmetic(Bf16Form form);
// The fastest one, unless a test has chosen another.
const Arithmetic& bf16_arithmetic();
bool is_bf16(const Arithmetic& arithmetic);

// ---- for tests ----

const char* bf16_form_name(Bf16Form form);
Bf16Form bf16_form();
// Calls that are prepared from here on get this form. False if there is none.
bool use_bf16_form(Bf16Form form);

// ---- AMX ----

inline constexpr int64_t kAmxRows = 16;   // of a tile register
inline constexpr int64_t kAmxPairs = 16;  // in a row of a tile

inline constexpr int64_t kAmxRowBlocks = 2;
inline constexpr int64_t kAmxBlocks = 64;                        // along a row, of one call
inline constexpr int64_t kAmxPitch = kTilePanels * kPanelLanes;  // of the sums

// Blocks of 16 rows by 16 pairs, one or two below each other. Each is multiplied with its own rows of the panels.
struct AmxBlocks {
  const float* rows[kAmxRowBlocks][kAmxBlocks];  // first rows of blocks
  int64_t strides[kAmxRowBlocks][kAmxBlocks];    // bytes from one row to the next
  int row_blocks;
  int64_t count;
  const std::byte* panels;
  int64_t panel_bytes;
  int num_panels;
};
// Does the CPU have tiles of bf16, and may this process use them?
bool has_amx();
// Before the first product of a thread, and after the last one.
void begin_amx();
void end_amx();
// Adds products to the sums of 16 or 32 rows, [rows][kAmxPitch], which are zero before the first ones. Sums of 16 rows
// stay in tiles until the last product, so no other sums may come between.
void add_amx(const AmxBlocks& blocks, bool is_first, bool is_last, float* sums);

}  // namespace hexane::cpu
