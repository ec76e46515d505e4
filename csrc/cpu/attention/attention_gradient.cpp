// attention_gradient: the gradients of query, key and value (.., L, E), from the gradient of softmax(query key' scale +
// mask) value.
//
// The kernel works on a block of queries at a time, so scores exist in scratch only. The kernel recomputes the
// attention weights p of the block, then computes (x' is x transposed)
//     ds = p (gradient value' - the row's sum of p (gradient value')) scale
//     dquery = ds key,  dkey = the sum over blocks of ds' query,  dvalue = the sum over blocks of p' gradient
// One thread computes all gradients of a matrix, so sums have one order.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attention/attention_gradient.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cpu/attention/attention_mask-inl.h"
#include "cpu/norm/softmax-inl.h"

#include <algorithm>
#include <cmath>

#include "cpu/elementwise/elementwise.h"
#include "cpu/matmul/gemm.h"
#include "cpu/operand.h"
#include "cpu/region.h"
#include "cpu/tables.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

constexpr const char* kName = "attention_gradient";
constexpr int64_t kBlockQueries = 3 * kPanelLanes;  // a block has whole tiles of rows, and whole squares to transpose
constexpr int kInputs = 5, kOutputs = 3;
enum Operand { kQuery, kKey, kValue, kGradient, kMask, kDquery, kDkey, kDvalue, kOperands };

struct Attrs {
  double scale;
  int64_t causal;
  double hidden;
};
static_assert(sizeof(Attrs) == 24);

struct State {
  int num_axes;  // number of batch axes, whose indices select a matrix
  int64_t extents[8];
  int64_t strides[8][kOperands];  // Strides of the batch axes, in bytes; 0 where the mask is broadcast.
  int64_t rows, depth;            // L, E.
  int64_t row_strides[kOperands];
  int64_t mask_column;
  bool masked;
  int64_t row_pitch, depth_pitch;  // rows and depth, rounded up to whole panels
};

const Tensor& operand(const Call& call, int i) {
  return i < kInputs ? call.inputs[static_cast<size_t>(i)] : call.outputs[static_cast<size_t>(i - kInputs)];
}

void check_shapes(const Call& call) {
  if (call.inputs.size() != kInputs || call.outputs.size() != kOutputs)
    fail(kName, "got ", call.inputs.size(), " inputs and ", call.outputs.size(), " outputs, need 5 and 3");
  const Tensor& query = call.inputs[kQuery];
  check_operand(kName, "query", query);
  if (query.rank < 2) fail(kName, "query rank: got ", query.rank, ", need 2 to 8");
  for (int i = 0; i < kOperands; ++i) {
    if (i == kMask) continue;
    const Tensor& t = operand(call, i);
    if (i < kInputs)
      check_operand(kName, "operand", t);
    else
      check_written(kName, "output", t);
    check_same_shape(kName, t, query);
    if (t.size() > 0 && t.shape[t.rank - 1] > 1 && t.strides[t.rank - 1] != 4)
      fail(kName, "operand ", i, ": got a last stride of ", t.strides[t.rank - 1], " bytes, need 4");
  }
  const Tensor& mask = call.inputs[kMask];
  if (!mask.present()) return;
  check_operand(kName, "mask", mask);
  for (int i = 1; i <= mask.rank; ++i) {
    const int64_t need = query.rank < i ? 1 : i == 1 ? query.shape[query.rank - 2] : query.shape[query.rank - i];
    if (mask.shape[mask.rank - i] != 1 && mask.shape[mask.rank - i] != need)
      fail(kName, "mask: got ", shape_text(mask), ", need a shape that broadcasts to scores of ", shape_text(query));
  }
}

Prepared prepare(const Call& call) {
  check_shapes(call);
  auto state = std::make_shared<State>();
  State& s = *state;
  const Tensor& query = call.inputs[kQuery];
  s.num_axes = query.rank - 2;
  s.rows = query.shape[query.rank - 2];
  s.depth = query.shape[query.rank - 1];
  s.masked = call.inputs[kMask].present();
  s.mask_column = 0;
  for (int i = 0; i < kOperands; ++i) {
    const Tensor& t = operand(call, i);
    const auto stride = [&](int from_end) {
      const int axis = t.rank - from_end;
      return axis < 0 || t.shape[axis] == 1 ? 0 : t.strides[axis];
    };
    for (int axis = 0; axis < s.num_axes; ++axis) s.strides[axis][i] = stride(query.rank - axis);
    s.row_strides[i] = stride(2);
    if (i == kMask && s.masked) s.mask_column = stride(1);
  }
  std::copy(query.shape, query.shape + s.num_axes, s.extents);
  s.row_pitch = ceil_div(s.rows, kPanelLanes) * kPanelLanes;
  s.depth_pitch = ceil_div(s.depth, kPanelLanes) * kPanelLanes;
  checked_product(kName, {std::max<int64_t>(s.row_pitch, 1), std::max<int64_t>(s.depth_pitch, kBlockQueries), 4, 8});
  return state;
}

void cuts(const Call& call, Cuts& cuts) {
  const auto& s = call.state<State>();
  for (int axis = 0; axis < s.num_axes; ++axis)
    if (s.extents[axis] > 1) cuts.add(axis, s.extents[axis]);
}

// Returns a box with whole matrices: every row and column of the matrices in `out`.
Box needs(const Call& call, int input, const Box& out) {
  Box all = out;
  for (int axis = out.rank - 2; axis < out.rank; ++axis) all[axis] = {0, call.inputs[kQuery].shape[axis]};
  if (input != kMask) return all;
  all[out.rank - 1] = all[out.rank - 2];
  return aligned(call.inputs[kMask], all);
}

int64_t cost(const Call& call) {
  const auto& s = call.state<State>();
  int64_t scores = s.rows * s.rows;
  for (int axis = 0; axis < s.num_axes; ++axis) scores *= s.extents[axis];
  return scores * s.depth / 10 / (call.attributes<Attrs>().causal ? 2 : 1) + scores * 2 + 100;
}

// The scratch of one thread: arrays of floats.
struct Buffers {
  float *keys, *values;     // Packed for products that give rows of scores: E rows in each panel of keys.
  float* key_columns;       // Keys packed for the query's gradient: L rows in each panel.
  float* queries;           // Queries of a block, times the scale.
  float *weights, *slopes;  // The p and ds of a block.
  float* turned;            // `weights` or `slopes` transposed: keys are rows.
  float* packed;            // Queries or gradients of a block as panels.
  float *key_sums, *value_sums;
  int64_t size;

  Buffers(const State& s, float* at) {
    const float* begin = at;
    const auto take = [&](int64_t n) { return std::exchange(at, at + n); };
    keys = take(s.depth * s.row_pitch);
    values = take(s.depth * s.row_pitch);
    key_columns = take(s.rows * s.depth_pitch);
    queries = take(kBlockQueries * s.depth_pitch);
    weights = take(kBlockQueries * s.row_pitch);
    slopes = take(kBlockQueries * s.row_pitch);
    turned = take(kBlockQueries * s.row_pitch);
    packed = take(kBlockQueries * s.depth_pitch);
    key_sums = take(s.row_pitch * s.depth_pitch);
    value_sums = take(s.row_pitch * s.depth_pitch);
    size = at - begin;
  }
};

int64_t scratch(const Call& call) {
  alignas(64) static float none[1];
  return 4 * Buffers(call.state<State>(), none).size;
}

const ResolvedEpilogue kNoEpilogue{};

Tile empty_tile(const float* const* rows) {
  Tile tile{};
  tile.a = rows;
  tile.num_segments = 1;
  tile.epilogue = &kNoEpilogue;
  return tile;
}

// Multiplies rows of floats by panels. a(i) and out(i) return the address of row i of the operand and of the result.
template <class A, class Out>
void multiply_rows(int64_t count, int64_t length, const float* panels, int64_t panel_rows, int64_t columns, A&& a,
                   Out&& out) {
  const float* rows[kTileRows];
  Tile tile = empty_tile(rows);
  tile.length = length;
  tile.panel_bytes = panel_rows * kPanelLanes * 4;
  tile.num_columns = columns;
  multiply(tile, false, reinterpret_cast<const std::byte*>(panels), count, {0, columns},
           [&](int64_t row, int n, Tile& t) {
             for (int i = 0; i < n; ++i) {
               rows[i] = a(row + i);
               t.out[i] = reinterpret_cast<std::byte*>(out(row + i));
             }
           });
}

// Adds the product turned' packed, a sum over the queries of a block, to the first `keys` rows of `sums`.
void add_products(const State& s, const Buffers& buffers, int64_t count, int64_t keys, float* sums) {
  const float* rows[kTileRows];
  Tile tile = empty_tile(rows);
  tile.length = count;
  tile.panel_bytes = count * kPanelLanes * 4;
  tile.num_columns = s.depth_pitch;
  tile.sums_pitch = s.depth_pitch;
  tile.first_block = tile.last_block = false;
  for (tile.column = 0; tile.column < s.depth_pitch; tile.column += tile.num_panels * kPanelLanes) {
    tile.num_panels = static_cast<int>(std::min(kTilePanels, (s.depth_pitch - tile.column) / kPanelLanes));
    tile.panels = reinterpret_cast<const std::byte*>(buffers.packed) + tile.column / kPanelLanes * tile.panel_bytes;
    for (int64_t key = 0; key < keys; key += tile.rows) {
      tile.rows = static_cast<int>(std::min(kTileRows, keys - key));
      tile.sums = sums + key * s.depth_pitch + tile.column;
      for (int i = 0; i < tile.rows; ++i) rows[i] = buffers.turned + (key + i) * kBlockQueries;
      gemm_ops().tile_fp32(tile);
    }
  }
}

// Transposes the rows of a block, so that keys are rows.
void turn(const State& s, const float* from, int64_t keys, float* turned) {
  alignas(64) float square[kPanelLanes * kPanelLanes];
  for (int64_t key = 0; key < keys; key += kPanelLanes)
    for (int64_t query = 0; query < kBlockQueries; query += kPanelLanes) {
      transpose_block(4)(reinterpret_cast<const std::byte*>(from + query * s.row_pitch + key), s.row_pitch * 4,
                         reinterpret_cast<std::byte*>(square));
      for (int64_t i = 0; i < kPanelLanes; ++i)
        std::memcpy(turned + (key + i) * kBlockQueries + query, square + i * kPanelLanes, kPanelLanes * 4);
    }
}

Columns columns_of(const std::byte* from, int64_t count, int64_t terms, int64_t column_stride, int64_t term_stride) {
  return {from, DType::kFp32, {1, 1, terms}, {0, 0, term_stride}, count, column_stride};
}

void pack(const Columns& columns, float* to) {
  pack_panels(columns, false, reinterpret_cast<std::byte*>(to), columns.k() * kPanelLanes * 4);
}

// Turns scores into weights p, and the products of gradient and values into ds.
void weigh(const Call& call, const State& s, const std::byte* mask, int64_t query, int64_t keys, float* weights,
           float* slopes) {
  const auto& attrs = call.attributes<Attrs>();
  const int64_t padded = ceil_div(keys, kPanelLanes) * kPanelLanes, seen = attrs.causal ? query + 1 : keys;
  const Tensor& given = call.inputs[kMask];
  const bool chooses = s.masked && given.dtype == DType::kBool;
  std::fill(weights + seen, weights + padded, -kInfinity);
  if (chooses) keep_masked(mask, s.mask_column, seen, static_cast<float>(attrs.hidden), weights);
  if (s.masked && !chooses) add_mask<float>(mask, s.mask_column, seen, weights);
  const float total = exponentials(weights, weights, padded, row_max(weights, padded));
  const V factor = set(1 / total);
  const int64_t block = sum_block(padded / kLanes) * kLanes;
  V sum = set(0);
  for (int64_t i = 0; i < padded;) {
    V part = set(0);
    for (const int64_t end = std::min(padded, i + block); i < end; i += kLanes) {
      const V p = hn::Mul(load(weights + i), factor), product = hn::Mul(p, load(slopes + i));
      store(p, weights + i);
      store(product, slopes + i);
      part = hn::Add(part, product);
    }
    sum = hn::Add(sum, part);
  }
  const V row = set(hn::GetLane(hn::SumOfLanes(D(), sum))), scale = set(static_cast<float>(attrs.scale));
  for (int64_t i = 0; i < padded; i += kLanes)
    store(hn::Mul(hn::NegMulAdd(load(weights + i), row, load(slopes + i)), scale), slopes + i);
  if (chooses) keep_masked(mask, s.mask_column, seen, 0.0f, slopes);
  std::fill(slopes + seen, slopes + padded, 0.0f);
}

// Computes the gradients of one matrix. at[i] is the address of operand i.
void run_matrix(const Call& call, const State& s, std::byte* const* at, const Buffers& buffers) {
  const bool causal = call.attributes<Attrs>().causal != 0;
  const V scale = set(static_cast<float>(call.attributes<Attrs>().scale));
  pack(columns_of(at[kKey], s.rows, s.depth, s.row_strides[kKey], 4), buffers.keys);
  pack(columns_of(at[kValue], s.rows, s.depth, s.row_strides[kValue], 4), buffers.values);
  pack(columns_of(at[kKey], s.depth, s.rows, 4, s.row_strides[kKey]), buffers.key_columns);
  std::fill_n(buffers.key_sums, s.row_pitch * s.depth_pitch, 0.0f);
  std::fill_n(buffers.value_sums, s.row_pitch * s.depth_pitch, 0.0f);
  const auto row = [&](int i, int64_t query) { return reinterpret_cast<float*>(at[i] + query * s.row_strides[i]); };
  for (int64_t first = 0; first < s.rows; first += kBlockQueries) {
    const int64_t count = std::min(kBlockQueries, s.rows - first), keys = causal ? first + count : s.rows;
    const int64_t padded = ceil_div(keys, kPanelLanes) * kPanelLanes;
    for (int64_t i = 0; i < count; ++i) {
      float* to = buffers.queries + i * s.depth_pitch;
      std::memcpy(to, row(kQuery, first + i), s.depth * 4);
      std::fill(to + s.depth, to + s.depth_pitch, 0.0f);
      map(to, to, s.depth_pitch, [&](V x) HWY_ATTR { return hn::Mul(x, scale); });
    }
    multiply_rows(
        count, s.depth, buffers.keys, s.depth, padded, [&](int64_t i) { return buffers.queries + i * s.depth_pitch; },
        [&](int64_t i) { return buffers.weights + i * s.row_pitch; });
    multiply_rows(
        count, s.depth, buffers.values, s.depth, padded, [&](int64_t i) { return row(kGradient, first + i); },
        [&](int64_t i) { return buffers.slopes + i * s.row_pitch; });
    for (int64_t i = 0; i < count; ++i)
      weigh(call, s, s.masked ? at[kMask] + (first + i) * s.row_strides[kMask] : nullptr, first + i, keys,
            buffers.weights + i * s.row_pitch, buffers.slopes + i * s.row_pitch);
    multiply_rows(
        count, keys, buffers.key_columns, s.rows, s.depth, [&](int64_t i) { return buffers.slopes + i * s.row_pitch; },
        [&](int64_t i) { return row(kDquery, first + i); });
    const auto add = [&](const float* rows, Operand with, float* sums) {
      turn(s, rows, padded, buffers.turned);
      const int64_t stride = s.row_strides[with];
      pack(columns_of(at[with] + first * stride, s.depth, count, 4, stride), buffers.packed);
      add_products(s, buffers, count, keys, sums);
    };
    add(buffers.weights, kGradient, buffers.value_sums);
    add(buffers.slopes, kQuery, buffers.key_sums);
  }
  for (int64_t i = 0; i < s.rows; ++i) {
    std::memcpy(row(kDkey, i), buffers.key_sums + i * s.depth_pitch, s.depth * 4);
    std::memcpy(row(kDvalue, i), buffers.value_sums + i * s.depth_pitch, s.depth * 4);
  }
}

void run(const Call& call, int axis, Range range, std::byte* scratch, const std::byte*) {
  const auto& s = call.state<State>();
  const Buffers buffers(s, reinterpret_cast<float*>(scratch));
  Range box[8];
  int64_t count = s.rows * s.depth == 0 ? 0 : 1;
  for (int i = 0; i < s.num_axes; ++i) {
    box[i] = i == axis ? range : Range{0, s.extents[i]};
    count *= box[i].end - box[i].begin;
  }
  for (int64_t index = 0; index < count; ++index) {
    std::byte* at[kOperands];
    for (int i = 0; i < kOperands; ++i) at[i] = operand(call, i).present() ? operand(call, i).data : nullptr;
    int64_t left = index;
    for (int i = s.num_axes - 1; i >= 0; --i) {
      const int64_t extent = box[i].end - box[i].begin, place = box[i].begin + left % extent;
      left /= extent;
      for (int o = 0; o < kOperands; ++o)
        if (at[o]) at[o] += place * s.strides[i][o];
    }
    run_matrix(call, s, at, buffers);
  }
}

constexpr Kernel row_of(const char* dtypes) {
  return {
      .name = kName,
      .dtypes = dtypes,
      .attrs = "scale:f causal:i hidden:f",
      .attrs_bytes = sizeof(Attrs),
      .accepts = "strided",
      .prepare = prepare,
      .cuts = cuts,
      .needs = needs,
      .cost = cost,
      .scratch = scratch,
      .run = run,
  };
}

const Kernel kTable[] = {row_of("fp32,fp32,fp32,fp32,fp32->fp32,fp32,fp32"),
                         row_of("fp32,fp32,fp32,fp32,bool->fp32,fp32,fp32")};

std::span<const Kernel> attention_gradient_kernels() { return kTable; }

}  // namespace
}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::cpu {
HWY_EXPORT(attention_gradient_kernels);
std::span<const Kernel> attention_gradient_table() { return HWY_DYNAMIC_DISPATCH(attention_gradient_kernels)(); }
}  // namespace hexane::cpu
#endif
