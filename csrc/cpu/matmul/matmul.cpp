// matmul: [.., M, K] x [.., K, N] -> [.., M, N] with NumPy broadcasting of the leading axes, bias and epilogue.
// encoded_matmul: matmul with an encoded weight [N, K], integers or indices of tables, decoded in every call.
// encoded_rows_matmul: [.., M, N] x an encoded weight [K, N], not transposed. Each thread decodes a block of the weight
// right before use. widening_matmul: matmul in fp32 with y in bf16. sparse_matmul: matmul with a weight stored without
// its zeros (sparse.h). accumulating_matmul: s + x y, or x y if `first` is true; the output may lie over s.
//
// y is packed into panels, at load if it is constant. A y that changes with every call is packed block by block by the
// thread that multiplies with it, if threads divide its columns or its matrices; if not, y is packed when the call
// begins. A y that is multiplied with only a few rows, such as a cache of keys, is read in place. A large y in 16 bits
// stays in 16 bits in its panels. Few rows are multiplied with the 16-bit panels; for many rows each thread widens some
// panels right before use.
#include <algorithm>
#include <cstring>
#include <vector>

#include "cpu/engine/engine_tile.h"
#include "cpu/matmul/bf16.h"
#include "cpu/matmul/encoded.h"
#include "cpu/matmul/encoded_rows.h"
#include "cpu/matmul/gemm_blocks.h"
#include "cpu/matmul/matmul.h"
#include "cpu/matmul/sparse.h"
#include "cpu/region.h"
#include "cpu/tables.h"

namespace hexane::cpu {
namespace {

struct MatmulAttrs {
  int64_t transpose_x, transpose_y;
  Epilogue epilogue;
};
static_assert(sizeof(MatmulAttrs) == 8 * 19);

struct EncodedMatmulAttrs {
  int64_t bits, palette, transpose_x;
  Epilogue epilogue;
};
static_assert(sizeof(EncodedMatmulAttrs) == 8 * 20);

struct SparseMatmulAttrs {
  int64_t columns, transpose_x;
  Epilogue epilogue;
};
static_assert(sizeof(SparseMatmulAttrs) == 8 * 19);

struct AccumulatingMatmulAttrs {
  int64_t transpose_x, transpose_y;
};

constexpr const char* kName = "matmul";
constexpr const char* kEncodedName = "encoded_matmul";
constexpr const char* kWideningName = "widening_matmul";
constexpr const char* kRowsName = "encoded_rows_matmul";
constexpr const char* kSparseName = "sparse_matmul";
constexpr const char* kAccumulatingName = "accumulating_matmul";
constexpr int kSumInput = 2, kFirstInput = 3;      // Indices of accumulating_matmul's inputs.
constexpr int64_t kDirectRows = 3;                 // For at most this many rows, packing y costs more than it gains.
constexpr int64_t kFewRows = 4 * kTileRows;        // For more rows, widening panels costs less than it gains.
constexpr int64_t kPartColumns = 8 * kPanelLanes;  // Columns packed at a time.
constexpr int64_t kPartRows = 4 * kPanelLanes;     // Rows of x converted at a time.
constexpr int64_t kChunkBytes = 192 << 10;         // Bytes of converted rows of x, a fraction of a second-level cache.

struct MatmulState : MatmulShape {
  const Arithmetic* arithmetic;
  bool dense_x;              // Rows of x are dense and in the arithmetic's input format, so they are read in place.
  bool is_packed;            // The operand y is constant.
  bool direct;               // The operand y is read in place.
  bool in_blocks = false;    // The thread that multiplies with y packs it.
  bool shared_rows = false;  // Rows of x are converted when a call begins, for all threads.
  bool half_panels;
  bool widens = false;  // each thread widens some panels to fp32 right before use
  int64_t panel_bytes, batch_bytes;
  int64_t row_items;   // Items of a row of x in the arithmetic's format.
  int64_t chunk_rows;  // Rows of x converted at once.
  size_t bias_input = 2;
  bool accumulates = false;
  bool encoded = false;  // y is `encoded_y`, with addresses set in each call
  EncodedPanels encoded_y;
  bool by_rows = false;  // y is `rows_y`, read in place
  EncodedRows rows_y;
  bool sparse = false;  // y is `sparse_y`, read in place
  SparseShape sparse_y;
  std::vector<int64_t> groups;  // index of each column group's first number, if `sparse_y` is constant
  std::vector<float> bias;
  Block packed;
  ResolvedEpilogue epilogue;
};

int64_t packed_bytes(const MatmulState& s) {
  return s.batch_bytes * s.num_y_batches + (s.encoded ? number_bytes(s.encoded_y) : 0);
}

Columns columns_of(const std::byte* matrix, const Tensor& y, const MatmulState& s) {
  return {matrix, y.dtype, {1, 1, s.k}, {0, 0, s.k_stride_y}, s.n, s.n_stride_y};
}

// Packing y is divided into parts: some columns of one matrix each.
int64_t packed_parts(const MatmulState& s) { return s.num_y_batches * ceil_div(s.n, kPartColumns); }
void pack_part(const Tensor& y, const MatmulState& s, int64_t part, std::byte* to) {
  const int64_t parts = ceil_div(s.n, kPartColumns), batch = part / parts, first = part % parts * kPartColumns;
  Columns columns = columns_of(y_matrix(y, batch) + first * s.n_stride_y, y, s);
  columns.num_columns = std::min(kPartColumns, s.n - first);
  pack_panels(columns, s.half_panels, to + batch * s.batch_bytes + first / kPanelLanes * s.panel_bytes, s.panel_bytes,
              *s.arithmetic);
}

void pack_y(const Call& call, const MatmulState& s, std::byte* to) {
  const Tensor& y = call.inputs[1];
  if (s.encoded) return pack_encoded(y, call.inputs[2], s.encoded_y, s.n, to, to + s.batch_bytes);
  for (int64_t part = 0; part < packed_parts(s); ++part) pack_part(y, s, part, to);
}

void set_rows(const Call& call, MatmulState& s) {
  const Tensor& x = call.inputs[0];
  const bool is_read = s.arithmetic->terms == 1 ? x.dtype == DType::kFp32
                                                : s.arithmetic->reads_bf16 && x.dtype == DType::kBf16 && s.k % 2 == 0;
  s.dense_x = is_read && (s.k <= 1 || s.k_stride_x == item_bytes(x));
  checked_product(kName, {s.k, 4, kTileRows});
  s.row_items = s.arithmetic->items(s.k);
  const int64_t tile_rows = s.arithmetic->rows, row_bytes = std::max<int64_t>(s.row_items, 1) * 4;
  const int64_t tiles = std::max<int64_t>(1, kChunkBytes / (row_bytes * tile_rows));
  s.chunk_rows = std::max<int64_t>(1, std::min(s.rows_per_y, tiles * tile_rows));
}

void set_bias(const char* kernel, const Call& call, MatmulState& s) {
  if (call.inputs.size() <= s.bias_input || !call.inputs[s.bias_input].present()) return;
  const Tensor& bias = call.inputs[s.bias_input];
  check_bias(kernel, bias, s.n);
  s.bias.resize(ceil_div(s.n, kPanelLanes) * kPanelLanes);
  if (bias.constant) pack_bias(bias, s.n, s.bias.data(), *s.arithmetic);
}

void pack_constant(const Call& call, MatmulState& s) {
  if (!s.is_packed || call.asks) return;
  const auto pack = [&](std::byte* to) { pack_y(call, s, to); };
  if (s.encoded) {  // the packed bytes depend on two operands, and share_packed() compares one
    Memory packed(packed_bytes(s), "packed weights");
    pack(packed.data());
    s.packed = call.share(std::move(packed));
    return;
  }
  s.packed = call.share_packed(kName, call.inputs[1],
                               {s.k, s.n, s.k_stride_y, s.n_stride_y, s.num_y_batches, s.half_panels, s.panel_bytes,
                                s.batch_bytes, reinterpret_cast<intptr_t>(s.arithmetic)},
                               packed_bytes(s), pack);
}

// Decides whether each piece of a call packs its own part of y, and whether the pieces share converted rows of x. The
// pieces share rows of x if they divide the output's columns and x has to be converted.
void plan_blocks(const Call& call, MatmulState& s) {
  const bool is_bf16 = call.inputs[1].dtype == DType::kBf16;
  if (s.is_packed || s.direct || is_bf16 || s.arithmetic != &ieee_arithmetic() || !fits_blocks(s.k)) return;
  Cuts cuts;
  matmul_cuts(call, s, s.batch_bytes, cuts);
  const int columns = call.outputs[0].rank - 1, axis = cuts.count ? cuts.items[0].axis : columns;
  s.in_blocks = axis == columns || axis < s.num_outer;
  s.shared_rows = s.in_blocks && axis == columns && s.num_outer == 0 && !s.dense_x && call.inputs[0].ring == 0;
}

// Prepares a product of x and y, with its epilogue.
void prepare_product(const char* kernel, const Call& call, bool transpose_x, bool transpose_y, MatmulState& s) {
  const bool ieee = s.arithmetic == &ieee_arithmetic();
  set_shape(kernel, s, call, transpose_x, transpose_y, s.epilogue);
  const Tensor& y = call.inputs[1];
  set_rows(call, s);
  const bool is_bf16 = ieee && y.dtype == DType::kBf16;
  s.direct = ieee && !y.constant && s.rows_per_y <= kDirectRows && !is_bf16;
  const int64_t num_panels = ceil_div(s.n, kPanelLanes);
  checked_product(kernel,
                  {s.k, kPanelLanes, 4, std::max<int64_t>(num_panels, 1), std::max<int64_t>(s.num_y_batches, 1)});
  const int64_t panel_items = s.arithmetic->column_items(1, s.row_items) * kPanelLanes;
  s.half_panels = is_bf16 || (ieee && keep_half(y.dtype, panel_items * num_panels, s.rows_per_y));
  s.widens = s.half_panels && s.rows_per_y > kFewRows;
  s.panel_bytes = panel_items * (s.half_panels ? 2 : 4) + s.arithmetic->end_bytes;
  s.batch_bytes = s.panel_bytes * num_panels;
  set_bias(kernel, call, s);
  s.is_packed = y.constant;
  pack_constant(call, s);
  plan_blocks(call, s);
}

Prepared prepare_in(const Arithmetic& arithmetic, const Call& call) {
  auto state = std::make_shared<MatmulState>();
  MatmulState& s = *state;
  const auto& attrs = call.attributes<MatmulAttrs>();
  if (call.inputs.size() < 2 || call.outputs.size() != 1)
    fail(kName, "got ", call.inputs.size(), " inputs and ", call.outputs.size(), " outputs, need at least 2 and 1");
  s.arithmetic = &arithmetic;
  s.epilogue = resolve_epilogue(kName, call, attrs.epilogue, &arithmetic == &engine_arithmetic());
  prepare_product(kName, call, attrs.transpose_x, attrs.transpose_y, s);
  return state;
}

Prepared prepare_accumulating(const Call& call) {
  auto state = std::make_shared<MatmulState>();
  MatmulState& s = *state;
  const auto& attrs = call.attributes<AccumulatingMatmulAttrs>();
  const Tensor& first = call.inputs[kFirstInput];
  check_dense(kAccumulatingName, "first", first);
  if (first.rank != 1 || first.shape[0] != 1)
    fail(kAccumulatingName, "first: got the shape ", shape_text(first), ", need (1,)");
  s.arithmetic = &ieee_arithmetic();
  s.accumulates = true;
  s.bias_input = call.inputs.size();  // accumulating_matmul has no bias
  add_operand(kAccumulatingName, call, kSumInput, s.epilogue);
  prepare_product(kAccumulatingName, call, attrs.transpose_x, attrs.transpose_y, s);
  return state;
}

// Sets the shape of a product whose weight is decoded to a matrix [rows, width]. With transpose_y its rows are columns
// of the product, else terms.
void set_weight_shape(const char* kernel, const Call& call, int64_t rows, int64_t width, bool transpose_x,
                      bool transpose_y, MatmulState& s) {
  const int64_t shape[] = {rows, width}, strides[] = {width, 1};
  Tensor y = call.inputs[1];
  y.rank = 2;
  y.shape = shape;
  y.strides = strides;
  std::vector<Tensor> inputs(call.inputs.begin(), call.inputs.end());
  inputs[1] = y;
  Call seen = call;
  seen.inputs = inputs;
  set_shape(kernel, s, seen, transpose_x, transpose_y, s.epilogue);
  set_rows(call, s);
}

// Returns the state of a product whose weight is stored as two operands.
std::shared_ptr<MatmulState> stored_state(const char* kernel, const Call& call, const Epilogue& epilogue) {
  auto state = std::make_shared<MatmulState>();
  if (call.inputs.size() < 3 || call.outputs.size() != 1)
    fail(kernel, "got ", call.inputs.size(), " inputs and ", call.outputs.size(), " outputs, need at least 3 and 1");
  state->arithmetic = &ieee_arithmetic();
  state->epilogue = resolve_epilogue(kernel, call, epilogue);
  state->bias_input = 3;
  state->is_packed = call.inputs[1].constant && call.inputs[2].constant;
  return state;
}

Prepared prepare_encoded(const Call& call) {
  const auto& attrs = call.attributes<EncodedMatmulAttrs>();
  auto state = stored_state(kEncodedName, call, attrs.epilogue);
  MatmulState& s = *state;
  const Tensor &x = call.inputs[0], &weight = call.inputs[1], &numbers = call.inputs[2];
  s.encoded = true;
  s.encoded_y = encoded_panels(kEncodedName, x, weight, numbers, attrs.bits, attrs.palette, attrs.transpose_x);
  set_weight_shape(kEncodedName, call, s.encoded_y.columns, s.encoded_y.k, attrs.transpose_x, true, s);
  s.direct = s.half_panels = false;
  s.panel_bytes = s.encoded_y.panel_bytes;
  s.batch_bytes = s.panel_bytes * ceil_div(s.n, kPanelLanes);
  set_bias(kEncodedName, call, s);
  pack_constant(call, s);
  return state;
}

// A packed weight is read from its panels.
bool copies_encoded(const Call& call, int input) {
  return (input == 1 || input == 2) && call.state<MatmulState>().is_packed;
}

// Integers of 8 bits are in the panels as they are.
PackedRows packed_rows_of_encoded(const Call& call, int input) {
  const auto& s = call.state<MatmulState>();
  if (input != 1 || !s.packed || s.encoded_y.four_bits || s.encoded_y.palette) return {};
  return {s.packed, s.packed->data(), kPanelLanes, s.panel_bytes};
}

Prepared prepare_rows(const Call& call) {
  const auto& attrs = call.attributes<EncodedMatmulAttrs>();
  auto state = stored_state(kRowsName, call, attrs.epilogue);
  MatmulState& s = *state;
  const Tensor &weight = call.inputs[1], &numbers = call.inputs[2], &out = call.outputs[0];
  check_dense(kRowsName, "weight", weight);
  check_dense(kRowsName, "numbers", numbers);
  if (out.rank < 1) fail(kRowsName, "ranks: got an output of rank 0, need at least 2");
  // The weight gets the same checks as for encoded_matmul.
  const int64_t shape[] = {1, out.shape[out.rank - 1]}, strides[] = {0, 4};
  const Tensor row = {nullptr, DType::kFp32, 2, false, 0, shape, strides};
  const EncodedPanels e = encoded_panels(kRowsName, row, weight, numbers, attrs.bits, attrs.palette, false);
  s.by_rows = s.in_blocks = true;
  s.rows_y = encoded_rows(e, numbers);
  set_weight_shape(kRowsName, call, e.columns, e.k, attrs.transpose_x, false, s);
  s.direct = s.half_panels = s.is_packed = false;
  s.panel_bytes = s.k * kPanelLanes * 4;
  s.batch_bytes = s.panel_bytes * ceil_div(s.n, kPanelLanes);
  set_bias(kRowsName, call, s);
  return state;
}

Prepared prepare_sparse(const Call& call) {
  const auto& attrs = call.attributes<SparseMatmulAttrs>();
  auto state = stored_state(kSparseName, call, attrs.epilogue);
  MatmulState& s = *state;
  s.sparse = true;
  s.sparse_y =
      sparse_shape(kSparseName, call.inputs[0], call.inputs[1], call.inputs[2], attrs.columns, attrs.transpose_x);
  set_weight_shape(kSparseName, call, attrs.columns, s.sparse_y.k, attrs.transpose_x, true, s);
  s.direct = s.half_panels = false;
  s.panel_bytes = s.k * kPanelLanes * 4;
  s.batch_bytes = s.panel_bytes * ceil_div(s.n, kPanelLanes);
  set_bias(kSparseName, call, s);
  if (s.is_packed) {
    s.groups.resize(static_cast<size_t>(s.sparse_y.num_groups()));
    find_groups(kSparseName, s.sparse_y, call.inputs[1], call.inputs[2], s.groups.data());
  }
  return state;
}

Prepared prepare(const Call& call) { return prepare_in(ieee_arithmetic(), call); }
Prepared prepare_engine(const Call& call) { return prepare_in(engine_arithmetic(), call); }
Prepared prepare_bf16(const Call& call) { return prepare_in(bf16_arithmetic(), call); }

void cuts(const Call& call, Cuts& cuts) {
  const auto& s = call.state<MatmulState>();
  matmul_cuts(call, s, s.batch_bytes, cuts, s.encoded || s.by_rows || s.sparse, s.sparse ? kMaskColumns : kPanelLanes);
}

Box needs(const Call& call, int input, const Box& out) {
  const auto& attrs = call.attributes<MatmulAttrs>();
  return matmul_needs(call, input, 3, out, attrs.transpose_x, attrs.transpose_y);
}

Box needs_encoded(const Call& call, int input, const Box& out) {
  const bool scales = input == 2 && !call.attributes<EncodedMatmulAttrs>().palette;
  if (input != 1 && !scales)
    return input == 2 ? whole(call.inputs[2])
                      : matmul_needs(call, input, 4, out, call.attributes<EncodedMatmulAttrs>().transpose_x, true);
  Box box = whole(call.inputs[input]);
  const Range columns = out[out.rank - 1];
  box[scales ? 1 : 0] = scales ? columns : code_rows(call.state<MatmulState>().encoded_y, columns);
  return box;
}

Box needs_rows(const Call& call, int input, const Box& out) {
  if (input == 1 || input == 2) return whole(call.inputs[input]);
  return matmul_needs(call, input, 4, out, call.attributes<EncodedMatmulAttrs>().transpose_x, false);
}

Box needs_sparse(const Call& call, int input, const Box& out) {
  if (input == 1 || input == 2) return whole(call.inputs[input]);
  return matmul_needs(call, input, 4, out, call.attributes<SparseMatmulAttrs>().transpose_x, true);
}

Box needs_accumulating(const Call& call, int input, const Box& out) {
  if (input == kFirstInput) return whole(call.inputs[input]);
  const auto& attrs = call.attributes<AccumulatingMatmulAttrs>();
  return matmul_needs(call, input, kSumInput, out, attrs.transpose_x, attrs.transpose_y);
}

int64_t cost(const Call& call) {
  const auto& s = call.state<MatmulState>();
  const int64_t weight = s.encoded || s.by_rows || s.sparse ? s.n * s.k / 10 : s.batch_bytes * s.num_y_batches / 60;
  return std::max(call.outputs[0].size() * s.k / 50, weight) + 100;
}

// Scratch of one thread: converted rows of x | bias | a row of results | decoded panels or a block of y, all fp32.
int64_t chunk_floats(const MatmulState& s) {
  return s.dense_x || s.shared_rows ? 0 : ceil_div(s.chunk_rows * s.row_items, 16) * 16;
}
int64_t decoded_floats(const MatmulState& s) {
  if (s.in_blocks) return block_floats(s.k, s.dense_x || s.shared_rows ? s.rows_per_y : s.chunk_rows);
  return s.widens || (s.encoded && s.rows_per_y > 1) || (s.sparse && s.rows_per_y > sparse_ops().spread_rows)
             ? decoded_panels(s.k) * kPanelLanes * s.k
             : 0;
}
int64_t scratch(const Call& call) {
  const auto& s = call.state<MatmulState>();
  return 4 * (chunk_floats(s) + static_cast<int64_t>(s.bias.size()) + ceil_div(s.n, 16) * 16 + decoded_floats(s));
}

int64_t shared_scratch(const Call& call) {
  const auto& s = call.state<MatmulState>();
  if (s.in_blocks) return s.shared_rows ? s.rows_per_y * s.k * 4 : 0;
  if (s.is_packed || s.direct) return 0;
  return s.sparse ? s.sparse_y.num_groups() * 8 : packed_bytes(s);
}

// Converts a row of x to floats.
void convert_row(const Tensor& x, const MatmulState& s, int64_t offset, float* to) {
  const std::byte* from = x.data + offset;
  const int64_t item = item_bytes(x);
  if (s.k_stride_x == item || s.k <= 1) return s.arithmetic->to_floats(from, x.dtype, s.k, to);
  constexpr int64_t kBlock = 64;
  std::byte block[kBlock * 4];
  for (int64_t k0 = 0; k0 < s.k; k0 += kBlock) {
    const int64_t count = std::min(kBlock, s.k - k0);
    for (int64_t k = 0; k < count; ++k) std::memcpy(block + k * item, from + (k0 + k) * s.k_stride_x, item);
    s.arithmetic->to_floats(block, x.dtype, count, to + s.arithmetic->items(k0));
  }
}

// Converts rows of a transposed x, adjacent in memory element by element, to rows of floats. Converts square by square,
// so that each cache line is read once. T: uint16_t for fp16, or float.
template <class T>
void convert_columns(const MatmulState& s, const std::byte* from, int64_t count, float* to) {
  constexpr bool kHalves = sizeof(T) == 2;
  alignas(64) T square[kPanelLanes * kPanelLanes];
  alignas(64) float floats[kPanelLanes * kPanelLanes];
  const auto* items = reinterpret_cast<const std::byte*>(square);
  for (int64_t row = 0; row < count; row += kPanelLanes)
    for (int64_t k = 0; k < s.k; k += kPanelLanes) {
      const int64_t rows = std::min<int64_t>(kPanelLanes, count - row), terms = std::min<int64_t>(kPanelLanes, s.k - k);
      const std::byte* corner = from + k * s.k_stride_x + row * static_cast<int64_t>(sizeof(T));
      if (rows == kPanelLanes && terms == kPanelLanes) {
        transpose_block(sizeof(T))(corner, s.k_stride_x, reinterpret_cast<std::byte*>(square));
      } else {
        std::fill_n(square, rows * kPanelLanes, T{});
        for (int64_t j = 0; j < terms; ++j)
          for (int64_t i = 0; i < rows; ++i)
            std::memcpy(square + i * kPanelLanes + j, corner + j * s.k_stride_x + i * sizeof(T), sizeof(T));
      }
      if constexpr (kHalves) s.arithmetic->to_floats(items, DType::kFp16, rows * kPanelLanes, floats);
      const std::byte* result = kHalves ? reinterpret_cast<const std::byte*>(floats) : items;
      for (int64_t i = 0; i < rows; ++i) std::memcpy(to + (row + i) * s.k + k, result + i * kPanelLanes * 4, terms * 4);
    }
}

// Converts rows [first, first + count) of x to rows of floats. Rows are counted over the box of one outer index.
void convert_rows(const Tensor& x, const MatmulState& s, const Range* box, const Offsets& base, int64_t first,
                  int64_t count, float* to) {
  const auto offset_of = [&](int64_t i) { return offsets(s, 0, box, s.num_outer, s.num_axes, first + i, base).x; };
  const int64_t item = item_bytes(x);
  if (s.arithmetic == &ieee_arithmetic() && s.num_axes - s.num_outer == 1 && s.k_stride_x != item &&
      offset_of(count - 1) - offset_of(0) == item * (count - 1)) {
    const auto convert = item == 2 ? convert_columns<uint16_t> : convert_columns<float>;
    return convert(s, x.data + offset_of(0), count, to);
  }
  for (int64_t i = 0; i < count; ++i) convert_row(x, s, offset_of(i), to + i * s.row_items);
}

int64_t begin_parts(const Call& call) {
  const auto& s = call.state<MatmulState>();
  if (s.shared_rows) return ceil_div(s.rows_per_y, kPartRows);
  return s.encoded || s.sparse ? 1 : packed_parts(s);
}

void begin_part(const Call& call, int64_t part, std::byte* shared) {
  const auto& s = call.state<MatmulState>();
  if (!s.shared_rows) return pack_part(call.inputs[1], s, part, shared);
  Range box[kMaxRank];
  for (int i = 0; i < s.num_axes; ++i) box[i] = {0, s.axes[i].extent};
  const int64_t first = part * kPartRows, count = std::min(kPartRows, s.rows_per_y - first);
  convert_rows(call.inputs[0], s, box, {}, first, count, reinterpret_cast<float*>(shared) + first * s.k);
}

// Decodes a block of the weight into panels.
void decode_block(const Call& call, const MatmulState& s, Range columns, Range terms, float* block) {
  const int64_t count = columns.end - columns.begin, panel = (terms.end - terms.begin) * kPanelLanes;
  alignas(64) float numbers[kBlockColumns];
  std::fill(numbers + count, numbers + ceil_div(count, kPanelLanes) * kPanelLanes, 0.0f);
  for (int64_t term = terms.begin; term < terms.end; ++term, block += kPanelLanes) {
    EncodedRow(s.rows_y, call.inputs[1], call.inputs[2], term).decode(columns.begin, count, numbers);
    for (int64_t i = 0; i < count; i += kPanelLanes)
      std::memcpy(block + i / kPanelLanes * panel, numbers + i, kPanelLanes * 4);
  }
}

void begin(const Call& call, std::byte* shared) {
  const auto& s = call.state<MatmulState>();
  if (s.is_packed || s.direct || (s.in_blocks && !s.shared_rows)) return;
  if (s.encoded) return pack_y(call, s, shared);
  if (s.sparse)
    return find_groups(kSparseName, s.sparse_y, call.inputs[1], call.inputs[2], reinterpret_cast<int64_t*>(shared));
  for (int64_t part = 0; part < begin_parts(call); ++part) begin_part(call, part, shared);
}

void run(const Call& call, int axis, Range range, std::byte* scratch, const std::byte* shared) {
  const auto& s = call.state<MatmulState>();
  const Tensor &x = call.inputs[0], &y = call.inputs[1], &out = call.outputs[0];
  Range box[kMaxRank];
  int64_t num_outer = 1, num_rows = 1;
  for (int i = 0; i < out.rank; ++i) {
    box[i] = i == axis ? range : Range{0, out.shape[i]};
    if (i < s.num_axes) (i < s.num_outer ? num_outer : num_rows) *= box[i].end - box[i].begin;
  }
  const Range columns = box[out.rank - 1];
  if (num_outer * num_rows == 0 || columns.begin >= columns.end) return;
  auto* converted = reinterpret_cast<float*>(scratch);
  float* bias = converted + chunk_floats(s);
  float* results = bias + s.bias.size();
  float* decoded = results + ceil_div(s.n, 16) * 16;
  const bool constant_bias = !s.bias.empty() && call.inputs[s.bias_input].constant;
  if (!s.bias.empty() && !constant_bias) pack_bias(call.inputs[s.bias_input], s.n, bias, *s.arithmetic);

  const float* rows[kMaxTileRows];
  Tile tile{};
  tile.a = rows;
  tile.num_segments = 1;
  tile.length = s.row_items;
  tile.panel_bytes = s.panel_bytes;
  tile.bias = s.bias.empty() ? nullptr : constant_bias ? s.bias.data() : bias;
  static const ResolvedEpilogue kNothing;
  tile.epilogue = s.accumulates && *call.inputs[kFirstInput].as<uint8_t>() ? &kNothing : &s.epilogue;
  tile.half_output = out.dtype == DType::kFp16;
  tile.bf16_output = out.dtype == DType::kBf16;
  tile.num_columns = s.n;

  const SparsePanels sparse_y = {y.data, s.sparse ? call.inputs[2].as<const float>() : nullptr,
                                 s.is_packed ? s.groups.data() : reinterpret_cast<const int64_t*>(shared), s.k};
  for (int64_t outer = 0; outer < num_outer; ++outer) {
    const Offsets base = offsets(s, s.epilogue.num_extra, box, 0, s.num_outer, outer, {});
    const std::byte* panels = s.is_packed && !s.sparse ? s.packed->data() : shared;
    if (!s.sparse) panels += base.y_batch * s.batch_bytes;
    const Offsets top = offsets(s, s.epilogue.num_extra, box, s.num_outer, s.num_axes, 0, base);
    const bool one_axis = s.num_axes > s.num_outer && num_rows == box[s.num_axes - 1].end - box[s.num_axes - 1].begin;
    const bool in_place = s.shared_rows || (s.dense_x && !s.direct);
    for (int64_t first = 0; first < num_rows;) {
      const int64_t count = in_place ? num_rows : std::min(s.chunk_rows, num_rows - first);
      if (!s.dense_x && !s.shared_rows) convert_rows(x, s, box, base, first, count, converted);
      // Sets entry i of a tile or block to the addresses of one row.
      const auto put_row = [&](const Offsets& at, int64_t steps, const Axis& axis, int64_t row, int64_t i,
                               const float** a, auto& to) {
        a[i] = s.shared_rows ? reinterpret_cast<const float*>(shared) + (at.row + steps * axis.row) * s.k
               : s.dense_x   ? reinterpret_cast<const float*>(x.data + at.x + steps * axis.x)
                             : converted + row * s.row_items;
        to.out[i] = out.data + at.out + steps * axis.out;
        for (int e = 0; e < s.epilogue.num_extra; ++e)
          to.extra[e][i] = call.inputs[s.epilogue.extra_operand[e]].data + at.extra[e] + steps * axis.extra[e];
      };
      const auto locate_row = [&](int64_t row, int64_t i, const float** a, auto& to) {
        if (one_axis) return put_row(top, first + row, s.axes[s.num_axes - 1], row, i, a, to);
        put_row(offsets(s, s.epilogue.num_extra, box, s.num_outer, s.num_axes, first + row, base), 0, s.axes[0], row, i,
                a, to);
      };
      const auto locate = [&](int64_t row, int n, Tile&) {
        for (int i = 0; i < n; ++i) locate_row(row + i, i, rows, tile);
      };
      if (s.direct) {
        tile.column = columns.begin;
        for (int64_t i = 0; i < count; ++i) {
          locate(i, 1, tile);
          multiply_row(rows[0], y.data + base.y, y.dtype, s.k_stride_y, s.n_stride_y, s.k, s.n, columns, results);
          gemm_ops().finish_row(tile, results, columns.end - columns.begin);
        }
      } else if (s.in_blocks) {
        const Columns matrix = columns_of(y.data + base.y, y, s);
        const auto pack = [&](Range some, Range terms, float* block) {
          s.by_rows ? decode_block(call, s, some, terms, block) : pack_block(matrix, some, terms, block);
        };
        multiply_blocks(tile, s.k, count, columns, decoded, pack,
                        [&](int64_t row, int64_t i, BlockRows& to) { locate_row(row, i, to.a, to); });
      } else if (s.encoded) {
        multiply_encoded(tile, at_address(s.encoded_y, panels, s.batch_bytes), count, columns, decoded, locate);
      } else if (s.sparse) {
        multiply_sparse(tile, sparse_y, count, columns, decoded, locate);
      } else if (s.widens) {
        const auto widen = [&](Range some) {
          const std::byte* from = panels + some.begin / kPanelLanes * s.panel_bytes;
          const int64_t numbers = ceil_div(some.end - some.begin, kPanelLanes) * s.k * kPanelLanes;
          gemm_ops().to_fp32(from, y.dtype, numbers, decoded);
        };
        multiply_decoded(tile, s.k, count, columns, decoded, widen, locate);
      } else if (s.half_panels && y.dtype == DType::kBf16) {
        multiply_tiles(tile, gemm_ops().tile_bf16, panels, count, columns, locate);
      } else {
        multiply(tile, s.half_panels, panels, count, columns, locate, *s.arithmetic);
      }
      first += count;
    }
  }
}

constexpr Kernel row(const char* dtypes, bool engine = false) {
  return {
      .name = "matmul",
      .dtypes = dtypes,
      .family = engine ? "engine" : "ieee",
      .attrs = "transpose_x:i transpose_y:i epilogue:E",
      .attrs_bytes = sizeof(MatmulAttrs),
      .accepts = "rows",
      .prepare = engine ? prepare_engine : prepare,
      .cuts = cuts,
      .needs = needs,
      .cost = cost,
      .scratch = scratch,
      .shared_scratch = shared_scratch,
      .begin = begin,
      .begin_parts = begin_parts,
      .begin_part = begin_part,
      .run = run,
  };
}

// Products in bf16. An x that is not in bf16 is rounded to bf16.
constexpr Kernel bf16_row(const char* dtypes) {
  Kernel kernel = row(dtypes);
  kernel.prepare = prepare_bf16;
  return kernel;
}

constexpr Kernel widening_row(const char* dtypes) {
  Kernel kernel = row(dtypes);
  kernel.name = kWideningName;
  return kernel;
}

constexpr Kernel encoded_row(const char* dtypes) {
  Kernel kernel = row(dtypes);
  kernel.name = kEncodedName;
  kernel.attrs = "bits:i palette:i transpose_x:i epilogue:E";
  kernel.attrs_bytes = sizeof(EncodedMatmulAttrs);
  kernel.prepare = prepare_encoded;
  kernel.copies = copies_encoded;
  kernel.packed_rows = packed_rows_of_encoded;
  kernel.needs = needs_encoded;
  return kernel;
}

constexpr Kernel rows_row(const char* dtypes) {
  Kernel kernel = encoded_row(dtypes);
  kernel.name = kRowsName;
  kernel.prepare = prepare_rows;
  kernel.needs = needs_rows;
  return kernel;
}

constexpr Kernel sparse_row(const char* dtypes) {
  Kernel kernel = row(dtypes);
  kernel.name = kSparseName;
  kernel.attrs = "columns:i transpose_x:i epilogue:E";
  kernel.attrs_bytes = sizeof(SparseMatmulAttrs);
  kernel.prepare = prepare_sparse;
  kernel.needs = needs_sparse;
  return kernel;
}

constexpr Kernel accumulating_row(const char* dtypes) {
  Kernel kernel = row(dtypes);
  kernel.name = kAccumulatingName;
  kernel.attrs = "transpose_x:i transpose_y:i";
  kernel.attrs_bytes = sizeof(AccumulatingMatmulAttrs);
  kernel.prepare = prepare_accumulating;
  kernel.needs = needs_accumulating;
  return kernel;
}

const Kernel kTable[] = {row("fp32,fp32,fp32...->fp32"),
                         row("fp16,fp16,fp16...->fp16"),
                         row("fp32,fp16,fp32...->fp32"),
                         row("fp16,fp16,fp32...->fp32"),
                         row("fp16,fp32,fp32...->fp32"),
                         row("fp16,fp16,fp16...->fp16", true),
                         bf16_row("fp32,bf16,fp32...->fp32"),
                         bf16_row("bf16,bf16,fp32...->fp32"),
                         bf16_row("fp32,bf16,fp32->bf16"),
                         bf16_row("bf16,bf16,fp32->bf16"),
                         accumulating_row("fp32,fp32,fp32,bool->fp32"),
                         accumulating_row("fp32,fp16,fp32,bool->fp32"),
                         accumulating_row("fp16,fp16,fp32,bool->fp32"),
                         accumulating_row("fp16,fp32,fp32,bool->fp32")};
const Kernel kWideningTable[] = {widening_row("fp32,bf16,fp32...->fp32")};
const Kernel kEncodedTable[] = {encoded_row("fp32,8b,fp32,fp32...->fp32"), encoded_row("fp16,8b,fp32,fp16...->fp16"),
                                rows_row("fp32,8b,fp32,fp32...->fp32")};
const Kernel kSparseTable[] = {sparse_row("fp32,8b,fp32,fp32...->fp32")};

}  // namespace

std::span<const Kernel> matmul_table() { return kTable; }
std::span<const Kernel> widening_matmul_table() { return kWideningTable; }
std::span<const Kernel> encoded_matmul_table() { return kEncodedTable; }
std::span<const Kernel> sparse_matmul_table() { return kSparseTable; }

}  // namespace hexane::cpu
