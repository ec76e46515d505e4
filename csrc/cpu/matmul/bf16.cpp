// The tiles of bf16 products for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/matmul/bf16.cpp"
#include "cpu/matmul/bf16.h"

#include <atomic>

#include "core/bf16.h"

#include <hwy/foreach_target.h>
// after foreach_target
#include "cpu/simd/epilogue-inl.h"
#include "cpu/sums.h"

// The attribute for BF16 instructions, which only some CPUs of Highway's AVX-512 target have. clang 17 crashes on them.
#undef HEXANE_BF16_EXTENSION
#if HEXANE_HAS_AVX512 && (HWY_COMPILER_CLANG < 1700 || HWY_COMPILER_CLANG >= 1800)
#define HEXANE_BF16_EXTENSION ",avx512bf16"
#endif

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

using U = hn::RebindToUnsigned<D>;
using VU = hn::Vec<U>;

// Converts n numbers to (n + 1) / 2 pairs.
void to_pairs(const std::byte* from, DType dtype, int64_t n, float* to) {
  auto* halves = reinterpret_cast<std::byte*>(to);
  const auto put = [&](int64_t i, bf16 x) {
    const uint16_t bits = x.bits & 0x7f80 ? x.bits : x.bits & 0x8000;
    std::memcpy(halves + 2 * i, &bits, 2);
  };
  int64_t i = 0;
  if (dtype == DType::kBf16) {
    const hn::ScalableTag<uint16_t> d;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    for (; i + lanes <= n; i += lanes) {
      const auto bits = hn::LoadU(d, reinterpret_cast<const uint16_t*>(from) + i);
      const auto normal = hn::Ne(hn::And(bits, hn::Set(d, 0x7f80)), hn::Zero(d));
      const auto sign = hn::And(bits, hn::Set(d, 0x8000));
      hn::StoreU(hn::IfThenElse(normal, bits, sign), d, reinterpret_cast<uint16_t*>(halves) + i);
    }
    for (; i < n; ++i) {
      bf16 x;
      std::memcpy(&x, from + 2 * i, 2);
      put(i, x);
    }
  } else {
    const hn::Rebind<uint16_t, D> d;
    const auto* p = reinterpret_cast<const float*>(from);
    for (; i + kLanes <= n; i += kLanes)
      hn::StoreU(to_bf16_bits(load(p + i)), d, reinterpret_cast<uint16_t*>(halves + 2 * i));
    for (; i < n; ++i) put(i, to_bf16(p[i]));
  }
  if (n % 2) put(n, bf16{0});
}

}  // namespace
}  // namespace hexane::cpu::HWY_NAMESPACE

namespace hexane::cpu::HWY_NAMESPACE::plain {
namespace {

// The two terms of each pair as vectors of fp32.
struct Terms {
  V first, second;
  Terms() = default;
  HWY_INLINE explicit Terms(V pair) {
    const VU bits = hn::BitCast(U(), pair);
    first = hn::BitCast(D(), hn::ShiftLeft<16>(bits));
    second = hn::BitCast(D(), hn::And(bits, hn::Set(U(), 0xffff0000u)));
  }
};
using Left = Terms;
using Right = Terms;
HWY_INLINE V add_pair(V sum, const Left& left, const Right& right) {
  return hn::MulAdd(left.first, right.first, hn::MulAdd(left.second, right.second, sum));
}

template <int kRows, int kPanels>
HWY_INLINE void finish_part(const Tile& t, int first_panel, const V (&acc)[kRows][kPanels * kPanelVectors]) {
  finish_through_memory<kRows, kPanels * kPanelVectors>(t, t.column + first_panel * kPanelLanes, acc);
}

#include "cpu/matmul/bf16_tiles-inl.h"

const Arithmetic kArithmetic = {.to_floats = to_pairs, .tile = tile, .terms = 2};

}  // namespace hexane::cpu::HWY_NAMESPACE::plain

HWY_AFTER_NAMESPACE();

#ifdef HEXANE_BF16_EXTENSION
#undef HWY_TARGET_STR
#define HWY_TARGET_STR HWY_TARGET_STR_AVX3 HEXANE_BF16_EXTENSION

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR)
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

// Rounds 16 numbers to bf16, as to_bf16_bits() does: this instruction also treats subnormal numbers as 0.
HWY_INLINE __m256i narrow(V x) { return (__m256i)_mm512_cvtneps_pbh(x.raw); }

// Like store_bf16(), with the instruction of narrow().
HWY_INLINE void store_narrow(V value, std::byte* to, int64_t index, int64_t n) {
  const hn::Rebind<uint16_t, D> d;
  const hn::Vec<decltype(d)> bits{narrow(value)};
  auto* at = reinterpret_cast<uint16_t*>(to) + index;
  if (n >= kLanes) return hn::StoreU(bits, d, at);
  hn::BlendedStore(bits, hn::FirstN(d, static_cast<size_t>(n)), d, at);
}

// Converts n numbers to (n + 1) / 2 pairs; for fp32 with the instruction of narrow().
void to_pairs_by_instruction(const std::byte* from, DType dtype, int64_t n, float* to) {
  int64_t i = 0;
  if (dtype == DType::kFp32)
    for (const auto* p = reinterpret_cast<const float*>(from); i + kLanes <= n; i += kLanes)
      hn::StoreU(hn::Vec<hn::Rebind<uint16_t, D>>{narrow(load(p + i))}, hn::Rebind<uint16_t, D>(),
                 reinterpret_cast<uint16_t*>(to) + i);
  if (i < n) to_pairs(from + i * info(dtype).bits / 8, dtype, n - i, to + i / 2);
}

// finish_in_memory() in one pass, for epilogues without functions: keeps a row of kPanels panels in registers.
template <int kPanels>
void finish_rows(const Tile& t, const float* sums, int64_t pitch) {
  const ResolvedEpilogue& e = *t.epilogue;
  const int64_t last = t.num_columns - t.column - (kPanels - 1) * kPanelLanes;  // columns of the last panel
  const auto left = [&](int p) HWY_ATTR { return p < kPanels - 1 ? kPanelLanes : last; };
  V bias[kPanels];
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p) bias[p] = t.bias ? load(t.bias + t.column + p * kPanelLanes) : hn::Zero(D());
  for (int m = 0; m < t.rows; ++m, sums += pitch) {
    V x[kPanels];
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) x[p] = hn::Load(D(), sums + p * kPanelLanes);
    if (t.bias)
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) x[p] = hn::Add(x[p], bias[p]);
    for (int s = 0; s < e.count; ++s) {
      const ResolvedSlot& slot = e.slots[s];
      if (slot.kind == ResolvedSlot::kAdd) {
        const std::byte* extra = t.extra[slot.extra][m];
#pragma GCC unroll 4
        for (int p = 0; p < kPanels; ++p)
          x[p] = hn::Add(x[p], load_any(extra, t.half_output, t.column + p * kPanelLanes, left(p)));
        continue;
      }
      const V low = hn::Set(D(), slot.alpha), high = hn::Set(D(), slot.beta);
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) x[p] = at_least(low, x[p]);
      if (slot.kind == ResolvedSlot::kClamp)
#pragma GCC unroll 4
        for (int p = 0; p < kPanels; ++p) x[p] = at_most(high, x[p]);
    }
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p)
      if (t.bf16_output)
        store_narrow(x[p], t.out[m], t.column + p * kPanelLanes, left(p));
      else
        store_any(x[p], t.out[m], t.half_output, t.column + p * kPanelLanes, left(p));
  }
}

// Like finish_in_memory(), for a tile of up to four panels whose rows of sums are `pitch` floats apart.
void finish_sums(const Tile& t, float* sums, int64_t pitch) {
  if (!t.epilogue->in_registers) {
    const int64_t width = HWY_MIN(t.num_panels * kPanelLanes, t.num_columns - t.column);
    return finish_in_memory(t, t.column, t.rows, width, sums, pitch);
  }
  switch (t.num_panels) {
    case 1:
      return finish_rows<1>(t, sums, pitch);
    case 2:
      return finish_rows<2>(t, sums, pitch);
    case 3:
      return finish_rows<3>(t, sums, pitch);
    default:
      return finish_rows<4>(t, sums, pitch);
  }
}

}  // namespace
}  // namespace hexane::cpu::HWY_NAMESPACE

namespace hexane::cpu::HWY_NAMESPACE::extended {
namespace {

using Left = V;
using Right = V;
HWY_INLINE hn::Vec512<float> add_pair(hn::Vec512<float> sum, hn::Vec512<float> left, hn::Vec512<float> right) {
  return hn::Vec512<float>{_mm512_dpbf16_ps(sum.raw, (__m512bh)left.raw, (__m512bh)right.raw)};
}

// With AVX-512 a tile is one part: its first panel is 0.
template <int kRows, int kPanels>
HWY_INLINE void finish_part(const Tile& t, int, const V (&acc)[kRows][kPanels]) {
  if (!t.bf16_output) return finish_through_memory<kRows, kPanels>(t, t.column, acc);
  alignas(64) float sums[kRows][kPanels * kPanelLanes];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) hn::Store(acc[m][p], D(), sums[m] + p * kPanelLanes);
  finish_sums(t, sums[0], kPanels * kPanelLanes);
}

#include "cpu/matmul/bf16_tiles-inl.h"

const Arithmetic kArithmetic = {.to_floats = to_pairs_by_instruction, .tile = tile, .terms = 2};

}  // namespace hexane::cpu::HWY_NAMESPACE::extended

namespace hexane::cpu::HWY_NAMESPACE::amx {
namespace {

constexpr int64_t kPitch = kAmxPitch, kRows = kAmxRowBlocks * kAmxRows;

// Returns the stride in bytes of 16 equidistant rows, or -1 if the rows are not equidistant.
int64_t even_stride(const float* const* a) {
  const auto address = [&](int m) HWY_ATTR { return reinterpret_cast<intptr_t>(a[m]); };
  const int64_t stride = address(1) - address(0);
  int64_t differences = 0;
  for (int m = 2; m < kAmxRows; ++m) differences |= address(m) - address(m - 1) - stride;
  return differences ? -1 : stride;
}

// Computes the sums of one or two blocks of rows. A full block of equidistant rows is read in place, and so is one with
// fewer pairs if it is the only block of rows. All other blocks of rows are copied.
void sum_blocks(const Tile& t, int first_block, int row_blocks, float* sums) {
  constexpr int64_t kCopies = 36;  // blocks copied at a time: they fit the first-level cache
  alignas(64) float copies[kCopies][kAmxRows * kAmxPairs];
  const float* const* all = t.a + first_block * kAmxRows;
  const int64_t num_rows = t.rows - first_block * kAmxRows;
  AmxBlocks blocks;
  blocks.row_blocks = row_blocks;
  blocks.count = 0;
  blocks.panels = t.panels;
  blocks.panel_bytes = t.panel_bytes;
  blocks.num_panels = t.num_panels;
  bool is_first = true;
  int64_t copied = 0;
  const auto flush = [&](bool is_last) {
    add_amx(blocks, is_first, is_last, sums);
    is_first = false;
    blocks.panels += blocks.count * kAmxPairs * kPanelLanes * 4;
    blocks.count = copied = 0;
  };
  for (int64_t s = 0; s < t.num_segments; ++s) {
    int64_t strides[kAmxRowBlocks];
    for (int b = 0; b < blocks.row_blocks; ++b)
      strides[b] = num_rows < (b + 1) * kAmxRows ? -1 : even_stride(all + s * kRows + b * kAmxRows);
    for (int64_t l = 0; l < t.length; l += kAmxPairs) {
      const int64_t count = HWY_MIN(kAmxPairs, t.length - l), at = blocks.count++;
      blocks.is_tail[at] = count < kAmxPairs && row_blocks == 1 && strides[0] != -1;
      for (int b = 0; b < blocks.row_blocks; ++b) {
        const float* const* a = all + s * kRows + b * kAmxRows;
        if (strides[b] != -1 && (count == kAmxPairs || blocks.is_tail[at])) {
          blocks.rows[b][at] = a[0] + l;
          blocks.strides[b][at] = strides[b];
          continue;
        }
        float* copy = copies[copied++];
        const int64_t rows = HWY_MIN(kAmxRows, num_rows - b * kAmxRows);
        for (int64_t m = 0; m < rows; ++m) hn::Store(load_n(a[m] + l, count), D(), copy + m * kAmxPairs);
        blocks.rows[b][at] = copy;
        blocks.strides[b][at] = kAmxPairs * 4;
      }
      if (blocks.count == kAmxBlocks || copied + row_blocks > kCopies) flush(false);
    }
  }
  flush(true);
}

// True if two blocks of rows should be computed together. Two blocks read each row twice, so they pay only if most of
// the row is not copied.
bool pays_together(const Tile& t) {
  if (t.rows < kRows || (t.length % kAmxPairs && t.length < 4 * kAmxPairs)) return false;
  return even_stride(t.a) != -1 && even_stride(t.a + kAmxRows) != -1;
}

void tile(const Tile& t) {
  alignas(64) float sums[kRows * kPitch];
  // Prefetches the cache lines of the output while the products run.
  const int64_t item = t.half_output || t.bf16_output ? 2 : 4, width = t.num_panels * kPanelLanes * item;
  for (int m = 0; m < t.rows; ++m) {
    const std::byte* row = t.out[m] + t.column * item;
    for (int64_t at = 0; at < width; at += 64) __builtin_prefetch(row + at, 1);
  }
  if (pays_together(t)) {
    begin_amx_tails(kAmxPairs);
    sum_blocks(t, 0, kAmxRowBlocks, sums);
  } else {
    if (const int64_t tail = t.length % kAmxPairs) begin_amx_tails(tail);
    for (int b = 0; b * kAmxRows < t.rows; ++b) sum_blocks(t, b, 1, sums + b * kAmxRows * kPitch);
  }
  finish_sums(t, sums, kPitch);
}

}  // namespace

const Arithmetic kArithmetic = {.to_floats = to_pairs_by_instruction,
                                .tile = tile,
                                .terms = 2,
                                .segment_items = kAmxPairs,
                                .rows = kRows,
                                .whole_tiles = true,
                                .even_rows = true,
                                .reads_bf16 = true,
                                .begin = begin_amx,
                                .end = end_amx};

}  // namespace hexane::cpu::HWY_NAMESPACE::amx
HWY_POP_ATTRIBUTES
#endif

namespace hexane::cpu::HWY_NAMESPACE {

const Arithmetic* bf16_of_target(Bf16Form form) {
#ifdef HEXANE_BF16_EXTENSION
  if (form == Bf16Form::kAmx && has_amx() && __builtin_cpu_supports("avx512bf16")) return &amx::kArithmetic;
  if (form == Bf16Form::kExtended && __builtin_cpu_supports("avx512bf16")) return &extended::kArithmetic;
#endif
  return form == Bf16Form::kPlain ? &plain::kArithmetic : nullptr;
}

}  // namespace hexane::cpu::HWY_NAMESPACE

#if HWY_ONCE
namespace hexane::cpu {
HWY_EXPORT(bf16_of_target);

namespace {

std::atomic<int> chosen_form = -1;

// Intel's processors take four times as long for a product instruction of AVX-512-BF16 as for a multiply-add, and so
// are faster without it (measured on Sapphire Rapids). Other CPUs have not been measured.
Bf16Form fastest_form() {
  if (bf16_arithmetic(Bf16Form::kAmx)) return Bf16Form::kAmx;
#if HWY_ARCH_X86
  if (!__builtin_cpu_is("intel") && bf16_arithmetic(Bf16Form::kExtended)) return Bf16Form::kExtended;
#endif
  return Bf16Form::kPlain;
}

}  // namespace

const Arithmetic* bf16_arithmetic(Bf16Form form) { return HWY_DYNAMIC_DISPATCH(bf16_of_target)(form); }

Bf16Form bf16_form() {
  const int chosen = chosen_form;
  return chosen < 0 ? fastest_form() : static_cast<Bf16Form>(chosen);
}

const Arithmetic& bf16_arithmetic() { return *bf16_arithmetic(bf16_form()); }

bool is_bf16(const Arithmetic& arithmetic) { return arithmetic.terms == 2; }

const char* bf16_form_name(Bf16Form form) {
  return form == Bf16Form::kAmx ? "amx" : form == Bf16Form::kExtended ? "avx512_bf16" : "plain";
}

bool use_bf16_form(Bf16Form form) {
  if (!bf16_arithmetic(form)) return false;
  chosen_form = static_cast<int>(form);
  return true;
}

}  // namespace hexane::cpu
#endif
