// Packs encoded weights: codes into panels, and scales or tables for whole panels.
#include "cpu/matmul/encoded.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/fp16.h"

namespace hexane::cpu {
namespace {

int64_t padded(int64_t num_columns) { return ceil_div(num_columns, kPanelLanes) * kPanelLanes; }

// Stores the entries of a table as fp16, low bytes and high bytes. Returns true if fp16 holds every entry exactly.
// Tables with infinities return false, because conversions of infinities differ.
bool put_halves(const float* entries, int64_t count, std::byte* low) {
  const bool wide = count == kWideTableEntries;
  std::byte* high = low + (wide ? 1 : count);
  bool held = true;
  for (int64_t i = 0; i < count; ++i) {
    const fp16 half = to_fp16(entries[i]);
    low[wide ? 2 * i : i] = static_cast<std::byte>(half.bits & 0xFF);
    high[wide ? 2 * i : i] = static_cast<std::byte>(half.bits >> 8);
    held = held && to_float(half) == entries[i] && std::isfinite(entries[i]);
  }
  return held;
}

void pack_vectors(const Tensor& tables, const EncodedPanels& e, float* to) {
  for (int64_t row = 0; row < tables.shape[0]; ++row)
    for (int64_t i = 0; i < e.entries; ++i)
      for (int64_t j = 0; j < e.vector; ++j, ++to) {
        const int64_t entry = std::min(i, tables.shape[1] - 1);
        std::memcpy(to, tables.data + row * tables.strides[0] + entry * tables.strides[1] + j * tables.strides[2], 4);
        if (e.halves) *to = to_float(to_fp16(*to));
      }
}

}  // namespace

EncodedPanels encoded_panels(const char* kernel, const Tensor& x, const Tensor& weight, const Tensor& numbers,
                             int64_t bits, bool palette, bool transpose_x) {
  if (bits != 4 && bits != 8) fail(kernel, "bits: got ", bits, ", need 4 or 8");
  if (x.rank < 2 || weight.rank != 2 || (numbers.rank != 2 && (numbers.rank != 3 || !palette)))
    fail(kernel, "ranks: got ", x.rank, ", ", weight.rank, " and ", numbers.rank, ", need at least 2, 2 and 2",
         palette ? " (3 for vectors)" : "");
  check_operand(kernel, "x", x);
  check_operand(kernel, "weight", weight);
  check_operand(kernel, "numbers", numbers);
  EncodedPanels e{};
  e.four_bits = bits == 4;
  e.palette = palette;
  e.halves = x.dtype == DType::kFp16;
  e.k = x.shape[x.rank - (transpose_x ? 2 : 1)];
  e.vector = numbers.rank == 3 ? numbers.shape[2] : 1;
  if (numbers.rank == 3 && e.vector != 2 && e.vector != 4)
    fail(kernel, "tables: got vectors of ", e.vector, " numbers, need 2 or 4");
  e.columns = checked_product(kernel, {weight.shape[0], e.vector});
  const int64_t n = e.columns, bytes = e.four_bits ? ceil_div(e.k, 2) : e.k;
  if (weight.shape[1] != bytes)
    fail(kernel, "weight: got ", shape_text(weight), ", need ", bytes, " bytes for each of its rows, which have ", e.k,
         " numbers of ", bits, " bits");
  if (bytes > 1 && weight.strides[1] != 1) fail(kernel, "weight: got a last stride of ", weight.strides[1], ", need 1");
  const int64_t num_panels = std::max<int64_t>(ceil_div(n, kPanelLanes), 1);
  e.panel_bytes = checked_product(kernel, {bytes, kPanelLanes / e.vector});
  checked_product(kernel, {std::max<int64_t>(e.k, 1), kPanelLanes, 4, num_panels});
  const int64_t rows = numbers.shape[0], width = numbers.shape[1];
  if (palette) {
    e.block = std::max<int64_t>(e.k, 1);
    const int64_t most = e.four_bits ? kTableEntries : kWideTableEntries;
    e.entries = width > kLongTableEntries ? kWideTableEntries : e.four_bits ? kTableEntries : kLongTableEntries;
    if (e.vector > 1) e.entries = most;
    e.pitch = e.vector > 1 ? e.entries * e.vector : e.entries + e.entries / 2;
    const int64_t run = e.vector > 1 ? kPanelLanes : kTableColumns;
    const bool whole_runs = rows > 0 && (rows == 1 || (n % rows == 0 && n / rows % run == 0));
    if (!whole_runs || width < 1 || width > most)
      fail(kernel, "tables: got ", shape_text(numbers), ", need 1 to ", most, " entries, and one table or one for",
           " each multiple of ", run, " of ", n, " columns");
    e.table_columns = rows == 1 ? padded(n) : n / rows;
    if (e.table_columns == 0) e.table_columns = kPanelLanes;
  } else {
    const bool whole_blocks = rows > 0 && (e.k % rows == 0) && (rows == 1 || !e.four_bits || e.k / rows % 2 == 0);
    if (!whole_blocks || width != n)
      fail(kernel, "scales: got ", shape_text(numbers), ", need (blocks, ", n,
           "), where the blocks are equal parts of ", e.k,
           e.four_bits ? " numbers, even ones where there are several" : " numbers");
    e.block = std::max<int64_t>(e.k / rows, 1);
    e.pitch = padded(n);
    e.table_columns = kPanelLanes;
  }
  e.num_rows = palette ? ceil_div(padded(n), e.table_columns) : rows;
  checked_product(kernel, {e.num_rows, std::max<int64_t>(e.pitch, 1), 4});
  return e;
}

int64_t number_bytes(const EncodedPanels& e) { return (e.num_rows * e.pitch + kPanelLanes) * 4; }

void pack_encoded(const Tensor& weight, const Tensor& numbers, const EncodedPanels& e, int64_t num_columns,
                  std::byte* panels, std::byte* to_numbers) {
  // Integers of four bits, from -8 to 7, are stored plus 8.
  const std::byte flip{static_cast<unsigned char>(e.four_bits && !e.palette ? 0x88 : 0)};
  // An index beyond a table is stored as the last index, because the kernels' loops do not check indices.
  const std::byte last{static_cast<unsigned char>(e.palette && !e.four_bits ? e.entries - 1 : 0xFF)};
  const int64_t lanes = kPanelLanes / e.vector, num_rows = num_columns / e.vector, bytes = e.panel_bytes / lanes;
  for (int64_t first = 0; first < num_rows; first += lanes, panels += e.panel_bytes) {
    const int64_t count = std::min(lanes, num_rows - first);
    if (count < lanes) std::memset(panels, 0, static_cast<size_t>(e.panel_bytes));
    const std::byte* from = weight.data + first * weight.strides[0];
    for (int64_t j = 0; j < bytes; ++j)
      for (int64_t i = 0; i < count; ++i)
        panels[j * lanes + i] = std::min(from[i * weight.strides[0] + j] ^ flip, last);
  }
  auto* to = reinterpret_cast<float*>(to_numbers);
  std::memset(to, 0, static_cast<size_t>(number_bytes(e)));
  if (e.vector > 1) return pack_vectors(numbers, e, to);
  const int64_t width = numbers.shape[1], count = e.palette ? e.entries : width;
  bool held = true;
  for (int64_t row = 0; row < numbers.shape[0]; ++row, to += e.pitch) {
    for (int64_t i = 0; i < count; ++i)
      std::memcpy(to + i, numbers.data + row * numbers.strides[0] + std::min(i, width - 1) * numbers.strides[1], 4);
    if (e.palette && e.halves)
      for (int64_t i = 0; i < count; ++i) to[i] = to_float(to_fp16(to[i]));
    if (e.palette) held = put_halves(to, count, reinterpret_cast<std::byte*>(to + count)) && held;
  }
  if (e.palette) reinterpret_cast<float*>(to_numbers)[e.num_rows * e.pitch] = held ? 1.0f : 0.0f;
}

}  // namespace hexane::cpu
