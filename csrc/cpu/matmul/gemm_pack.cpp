// Packs weights and biases into the panels of gemm.h, and resolves epilogues.
#include <algorithm>
#include <cstring>

#include "cpu/matmul/gemm.h"

namespace hexane::cpu {
namespace {

constexpr int64_t kRows = kPanelLanes;  // rows of a panel that are gathered at a time: a square block

// Up to 16 rows of a panel: the byte offsets of their items in the first column, and their row numbers in the panel.
struct Rows {
  int64_t count = 0;
  int64_t offsets[kRows], places[kRows];
};

bool contiguous(const Rows& rows, int64_t item) {
  for (int64_t i = 1; i < rows.count; ++i)
    if (rows.offsets[i] != rows.offsets[i - 1] + item) return false;
  return true;
}

// Gathers rows into block[row][lane]. Lanes after the last column are zero.
template <class T>
void gather(const Columns& c, const std::byte* from, int64_t num_columns, const Rows& rows, T* block) {
  const bool full = num_columns == kPanelLanes;
  if (c.column_stride == sizeof(T)) {
    for (int64_t i = 0; i < rows.count; ++i, block += kPanelLanes) {
      if (full) {
        std::memcpy(block, from + rows.offsets[i], kPanelLanes * sizeof(T));
        continue;
      }
      std::memcpy(block, from + rows.offsets[i], num_columns * sizeof(T));
      std::fill(block + num_columns, block + kPanelLanes, T{});
    }
    return;
  }
  if (full && rows.count == kRows && contiguous(rows, sizeof(T)))
    return transpose_block(sizeof(T))(from + rows.offsets[0], c.column_stride, reinterpret_cast<std::byte*>(block));
  if (!full) std::fill_n(block, rows.count * kPanelLanes, T{});
  for (int64_t lane = 0; lane < num_columns; ++lane, from += c.column_stride)
    for (int64_t i = 0; i < rows.count; ++i)
      block[i * kPanelLanes + lane] = *reinterpret_cast<const T*>(from + rows.offsets[i]);
}

template <class T>
void put(const T* block, const Rows& rows, std::byte* to) {
  for (int64_t i = 0; i < rows.count; ++i)
    std::memcpy(to + rows.places[i] * kPanelLanes * sizeof(T), block + i * kPanelLanes, kPanelLanes * sizeof(T));
}

// One of the axes that make up k: its extent, its stride in memory and its stride in rows of the panel.
struct Axis {
  int64_t size, stride, rows;
};

template <class T>
void pack_panel(const Columns& c, const std::byte* from, int64_t num_columns, const Axis (&axes)[3], bool as_floats,
                std::byte* to, const Arithmetic& arithmetic) {
  alignas(64) T block[kRows * kPanelLanes];
  alignas(64) float floats[kRows * kPanelLanes];
  Rows rows;
  const auto flush = [&] {
    gather(c, from, num_columns, rows, block);
    if (as_floats) {
      arithmetic.to_floats(reinterpret_cast<const std::byte*>(block), c.dtype, rows.count * kPanelLanes, floats);
      put(floats, rows, to);
    } else {
      put(block, rows, to);
    }
    rows.count = 0;
  };
  for (int64_t i = 0; i < axes[0].size; ++i)
    for (int64_t j = 0; j < axes[1].size; ++j) {
      int64_t offset = i * axes[0].stride + j * axes[1].stride, place = i * axes[0].rows + j * axes[1].rows;
      for (int64_t k = 0; k < axes[2].size; ++k, offset += axes[2].stride, place += axes[2].rows) {
        rows.offsets[rows.count] = offset;
        rows.places[rows.count] = place;
        if (++rows.count == kRows) flush();
      }
    }
  flush();
}

// Packs whole panels of a matrix with adjacent columns. Several panels of a row are copied at once, since each row of a
// big matrix is on pages of its own.
void pack_rows(const Columns& c, std::byte* to, int64_t panel_bytes) {
  constexpr int64_t kBytes = kPanelLanes * 4, kAhead = 4;
  const int64_t num_panels = c.num_columns / kPanelLanes;
  for (int64_t first = 0; first < num_panels; first += kTilePanels) {
    const int64_t end = std::min(num_panels, first + kTilePanels);
    const std::byte* from = c.from;
    for (int64_t k = 0; k < c.shape[2]; ++k, from += c.strides[2])
      for (int64_t panel = first; panel < end; ++panel) {
        __builtin_prefetch(from + kAhead * c.strides[2] + panel * kBytes);
        std::memcpy(to + panel * panel_bytes + k * kBytes, from + panel * kBytes, kBytes);
      }
  }
}

// Packs pairs of terms for up to 16 columns: two rows of the matrix become one row of pairs.
void pair_rows(const std::byte* from, int64_t stride, const Columns& c, int64_t columns, std::byte* to,
               const Arithmetic& arithmetic) {
  const int64_t item = c.dtype == DType::kFp32 ? 4 : 2;
  alignas(64) std::byte row[kPanelLanes * 4];
  alignas(64) float lanes[kPanelLanes];
  alignas(64) uint16_t terms[2][kPanelLanes] = {};
  for (int64_t k = 0; k < c.shape[2]; k += 2, to += kPanelLanes * 4) {
    if (k + 1 == c.shape[2]) std::memset(terms[1], 0, sizeof terms[1]);
    for (int64_t half = 0; half < std::min<int64_t>(2, c.shape[2] - k); ++half) {
      const std::byte* source = from + (k + half) * stride;
      if (c.column_stride != item) {
        for (int64_t lane = 0; lane < columns; ++lane)
          std::memcpy(row + lane * item, source + lane * c.column_stride, item);
        source = row;
      }
      arithmetic.to_floats(source, c.dtype, columns, lanes);
      std::memcpy(terms[half], lanes, columns * 2);
    }
    alignas(64) uint32_t pairs[kPanelLanes];
    for (int64_t lane = 0; lane < kPanelLanes; ++lane)
      pairs[lane] = terms[0][lane] | static_cast<uint32_t>(terms[1][lane]) << 16;
    std::memcpy(to, pairs, sizeof pairs);
  }
}

// Like pair_rows(), for a matrix with dense columns. Adjacent terms of a column already are pairs, so blocks of 16
// columns are only transposed.
void pair_columns(const std::byte* from, const Columns& c, int64_t columns, std::byte* to,
                  const Arithmetic& arithmetic) {
  constexpr int64_t kTerms = 2 * kPanelLanes;
  const int64_t item = c.dtype == DType::kFp32 ? 4 : 2;
  const TransposeFunction transpose = transpose_block(4);
  alignas(64) float block[kPanelLanes][kPanelLanes] = {};
  alignas(64) std::byte turned[sizeof block];
  for (int64_t k = 0; k < c.shape[2]; k += kTerms, to += sizeof block) {
    const int64_t terms = std::min(kTerms, c.shape[2] - k);
    for (int64_t n = 0; n < columns; ++n)
      arithmetic.to_floats(from + n * c.column_stride + k * item, c.dtype, terms, block[n]);
    if (terms == kTerms) {
      transpose(reinterpret_cast<const std::byte*>(block), sizeof block[0], to);
      continue;
    }
    transpose(reinterpret_cast<const std::byte*>(block), sizeof block[0], turned);
    std::memcpy(to, turned, arithmetic.items(terms) * kPanelLanes * 4);
  }
}

// Packs a bf16 or fp32 matrix into panels of pairs of terms.
void pack_pairs(const Columns& c, std::byte* to, int64_t panel_bytes, const Arithmetic& arithmetic) {
  const int64_t item = c.dtype == DType::kFp32 ? 4 : 2, pairs = arithmetic.items(c.shape[2]);
  const int64_t segment = arithmetic.column_items(1, c.joined ? c.shape[1] * pairs : pairs);
  if (panel_bytes == 0) return;  // no terms: `to` may be null
  for (int64_t n = 0; n < c.num_columns; n += kPanelLanes, to += panel_bytes) {
    const int64_t columns = std::min(kPanelLanes, c.num_columns - n);
    std::memset(to, 0, panel_bytes);
    for (int64_t i = 0; i < c.shape[0]; ++i)
      for (int64_t j = 0; j < c.shape[1]; ++j) {
        const std::byte* from = c.from + n * c.column_stride + i * c.strides[0] + j * c.strides[1];
        const int64_t first = c.joined ? i * segment + j * pairs : (i * c.shape[1] + j) * segment;
        std::byte* at = to + first * kPanelLanes * 4;
        if (c.strides[2] == item && c.shape[2] > 1)
          pair_columns(from, c, columns, at, arithmetic);
        else
          pair_rows(from, c.strides[2], c, columns, at, arithmetic);
      }
  }
}

}  // namespace

// Reads each column once, in the order of its memory.
void pack_panels(const Columns& c, bool halves, std::byte* to, int64_t panel_bytes, const Arithmetic& arithmetic) {
  if (arithmetic.terms == 2) return pack_pairs(c, to, panel_bytes, arithmetic);
  if (c.dtype == DType::kFp32 && c.column_stride == 4 && c.num_columns % kPanelLanes == 0 && !arithmetic.end_panel &&
      c.shape[0] * c.shape[1] == 1)
    return pack_rows(c, to, panel_bytes);
  Axis axes[] = {{c.shape[0], c.strides[0], c.shape[1] * c.shape[2]},
                 {c.shape[1], c.strides[1], c.shape[2]},
                 {c.shape[2], c.strides[2], 1}};
  // The stride of an axis of extent 1 has no meaning.
  const auto distance = [](const Axis& a) { return a.size == 1 ? INT64_MAX : a.stride; };
  std::stable_sort(std::begin(axes), std::end(axes),
                   [&](const Axis& a, const Axis& b) { return distance(a) > distance(b); });
  const std::byte* from = c.from;
  for (int64_t n = 0; n < c.num_columns; n += kPanelLanes, from += kPanelLanes * c.column_stride, to += panel_bytes) {
    const int64_t columns = std::min(kPanelLanes, c.num_columns - n);
    if (c.dtype == DType::kFp16 || c.dtype == DType::kBf16)
      pack_panel<uint16_t>(c, from, columns, axes, !halves, to, arithmetic);
    else
      pack_panel<uint32_t>(c, from, columns, axes, false, to, arithmetic);
    if (arithmetic.end_panel && !halves) arithmetic.end_panel(to, c.k());
  }
}

int64_t checked_product(const char* kernel, std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  for (const int64_t factor : factors)
    if (__builtin_mul_overflow(product, factor, &product) || product > int64_t{1} << 40)
      fail(kernel, "size: got more than 2^40 bytes to pack or to keep, need less");
  return product;
}

void check_bias(const char* kernel, const Tensor& bias, int64_t n) {
  check_operand(kernel, "bias", bias);
  const int64_t last = bias.rank > 0 ? bias.shape[bias.rank - 1] : 1;
  if (last != n || bias.size() != n)
    fail(kernel, "bias: got ", bias.size(), " elements of which ", last, " in the last axis, need ", n);
}

void pack_bias(const Tensor& bias, int64_t n, float* to, const Arithmetic& arithmetic) {
  if (n > 0) {
    const int64_t stride = bias.rank > 0 ? bias.strides[bias.rank - 1] : 0;
    const auto to_floats = arithmetic.terms == 1 ? arithmetic.to_floats : ieee_arithmetic().to_floats;
    for (int64_t i = 0; i < n; ++i) to_floats(bias.data + i * stride, bias.dtype, 1, to + i);
  }
  std::fill(to + n, to + ceil_div(n, kPanelLanes) * kPanelLanes, 0.0f);
}

void add_operand(const char* kernel, const Call& call, int64_t operand, ResolvedEpilogue& epilogue) {
  const Tensor& out = call.outputs[0];
  if (operand < 0 || operand >= static_cast<int64_t>(call.inputs.size()))
    fail(kernel, "epilogue: got operand ", operand, ", need one of ", call.inputs.size(), " inputs");
  const Tensor& extra = call.inputs[operand];
  check_operand(kernel, "epilogue operand", extra);
  if (extra.dtype != out.dtype || !std::equal(extra.shape, extra.shape + extra.rank, out.shape, out.shape + out.rank))
    fail(kernel, "epilogue: got an operand ", operand, " of another shape or dtype, need those of the output");
  if (extra.size() > 0 && extra.rank > 0 && extra.shape[extra.rank - 1] > 1 &&
      extra.strides[extra.rank - 1] != item_bytes(extra))
    fail(kernel, "epilogue: operand ", operand, ": got a last stride of ", extra.strides[extra.rank - 1],
         " bytes, need ", item_bytes(extra));
  epilogue.slots[epilogue.count++] = {ResolvedSlot::kAdd, 0, 0, epilogue.num_extra, nullptr, nullptr};
  epilogue.extra_operand[epilogue.num_extra++] = static_cast<int>(operand);
}

ResolvedEpilogue resolve_epilogue(const char* kernel, const Call& call, const Epilogue& epilogue, bool engine) {
  ResolvedEpilogue result;
  if (epilogue.count < 0 || epilogue.count > kMaxSlots)
    fail(kernel, "epilogue: got ", epilogue.count, " slots, need 0 to ", kMaxSlots);
  for (int i = 0; i < epilogue.count; ++i) {
    const EpilogueSlot& slot = epilogue.slots[i];
    const std::string_view kind = call.string(slot.kind);
    if (kind == "add") {
      add_operand(kernel, call, slot.operand, result);
      continue;
    }
    ResolvedSlot& resolved = result.slots[result.count++];
    resolved = {
        ResolvedSlot::kClamp, static_cast<float>(slot.alpha), static_cast<float>(slot.beta), 0, nullptr, nullptr};
    if (kind == "relu") {
      resolved.kind = ResolvedSlot::kRelu;
      resolved.alpha = 0.0f;
    } else if (kind == "relu6") {
      resolved.alpha = 0.0f;
      resolved.beta = 6.0f;
    } else if (kind != "clip") {
      resolved.kind = ResolvedSlot::kFunction;
      result.in_registers = false;
      resolved.function = find_row_function(kind);
      if (engine) resolved.map = half_map(kind, slot.alpha, slot.beta, call.numerics);
      if (resolved.map) resolved.kind = ResolvedSlot::kMap;
    }
  }
  return result;
}

}  // namespace hexane::cpu
