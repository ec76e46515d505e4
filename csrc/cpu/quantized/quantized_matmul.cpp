// quantized_matmul: [.., M, K] x [.., K, N] of 8-bit integers -> [.., M, N], summed in int32 and scaled, with NumPy
// broadcasting of the leading axes.
//
// y is packed into the panels of dot.h: at load if it is constant, else when a call begins.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "cpu/matmul/matmul.h"
#include "cpu/quantized/quantized.h"
#include "cpu/tables.h"

namespace hexane::cpu {
namespace {

struct QuantizedMatmulAttrs {
  int64_t transpose_y;
  QuantizedAttrs quantized;
};
static_assert(sizeof(QuantizedMatmulAttrs) == 8 * 20);

struct Q31MatmulAttrs {
  int64_t transpose_y;
  Q31Attrs quantized;
};

template <class Attrs>
constexpr const char* kNameOf = std::is_same_v<Attrs, Q31MatmulAttrs> ? "q31_matmul" : "quantized_matmul";

constexpr int64_t kChunkBytes = 32 << 10;  // bytes of rows of x with flipped signs

struct QuantizedMatmulState : MatmulShape {
  QuantizedState q;
  int64_t panel_bytes, batch_bytes;  // bytes of a panel, bytes of one packed matrix of y
  int64_t chunk_rows;
  bool constant_y;
  Block packed;  // panels, then the sums of their columns
  Memory columns;
};

int64_t panels_bytes(const QuantizedMatmulState& s) { return s.batch_bytes * s.num_y_batches; }
int64_t packed_bytes(const QuantizedMatmulState& s) {
  return panels_bytes(s) + 4 * s.q.padded_columns * s.num_y_batches;
}

void pack_y(const Tensor& y, const QuantizedMatmulState& s, std::byte* to) {
  const auto flip = static_cast<std::byte>(s.q.flip_y ? 0x80 : 0);
  auto* sums = reinterpret_cast<int32_t*>(to + panels_bytes(s));
  std::memset(to, 0, static_cast<size_t>(packed_bytes(s)));
  for_each_y(y, s, [&](const std::byte* from) {
    // Packs blocks of k, so that the panel stays in cache while columns or rows are read.
    constexpr int64_t kBlock = 256;
    for (int64_t k0 = 0; k0 < s.k; k0 += kBlock)
      for (int64_t n = 0; n < s.n; ++n) {
        std::byte* panel = to + n / kPanelLanes * s.panel_bytes;
        uint32_t sum = 0;
        for (int64_t k = k0; k < std::min(s.k, k0 + kBlock); ++k) {
          const std::byte value = from[k * s.k_stride_y + n * s.n_stride_y] ^ flip;
          panel_byte(panel, k, n % kPanelLanes) = value;
          sum += static_cast<uint32_t>(static_cast<int8_t>(value));
        }
        sums[n] = static_cast<int32_t>(static_cast<uint32_t>(sums[n]) + sum);
      }
    to += s.batch_bytes;
    sums += s.q.padded_columns;
  });
}

void fill(const Call& call, const QuantizedMatmulState& s, const std::byte* packed, std::byte* to) {
  const auto* sums = reinterpret_cast<const int32_t*>(packed + panels_bytes(s));
  fill_columns(s.q, call, sums, s.num_y_batches, s.k, to);
}

template <class Attrs>
Prepared prepare(const Call& call) {
  const char* kernel = kNameOf<Attrs>;
  auto state = std::make_shared<QuantizedMatmulState>();
  QuantizedMatmulState& s = *state;
  const auto& attrs = call.attributes<Attrs>();
  set_quantized(kernel, s.q, call, attrs.quantized);
  set_shape(kernel, s, call, false, attrs.transpose_y, s.q.output.epilogue);
  set_columns(kernel, s.q, call, s.n, s.n);
  const int64_t num_panels = ceil_div(s.n, kPanelLanes);
  s.panel_bytes = checked_product(kernel, {ceil_div(s.k, 4), kDotBytes});
  s.batch_bytes = s.panel_bytes * num_panels;
  checked_product(
      kernel, {ceil_div(s.k, 4), kDotBytes, std::max<int64_t>(num_panels, 1), std::max<int64_t>(s.num_y_batches, 1)});
  checked_product(kernel, {s.q.padded_columns, 16, std::max<int64_t>(s.num_y_batches, 1)});
  const int64_t tiles = std::max<int64_t>(1, kChunkBytes / (std::max<int64_t>(s.k, 1) * kTileRows));
  s.chunk_rows = std::max<int64_t>(1, std::min(s.rows_per_y, tiles * kTileRows));
  s.constant_y = call.inputs[1].constant;
  if (call.asks) return state;
  if (s.constant_y) {
    Memory packed(packed_bytes(s), "packed weights");
    pack_y(call.inputs[1], s, packed.data());
    s.packed = call.share(std::move(packed));
  }
  if (s.q.constant_columns) {
    s.columns = Memory(column_bytes(s.q, s.num_y_batches), "columns of weights");
    fill(call, s, s.packed->data(), s.columns.data());
  }
  return state;
}

void cuts(const Call& call, Cuts& cuts) {
  const auto& s = call.state<QuantizedMatmulState>();
  matmul_cuts(call, s, s.batch_bytes, cuts);
}

Box needs(const Call& call, int input, const Box& out) {
  const bool q31 = call.state<QuantizedMatmulState>().q.output.q31;
  const bool transpose_y = call.attributes<QuantizedMatmulAttrs>().transpose_y;  // first field of both Attrs structs
  return matmul_needs(call, input, q31 ? kNumQ31Inputs : kNumQuantizedInputs, out, false, transpose_y);
}

int64_t cost(const Call& call) {
  const auto& s = call.state<QuantizedMatmulState>();
  return std::max(call.outputs[0].size() * s.k / 150, panels_bytes(s) / 20) + 100;
}

// Scratch of one thread: rows of x with flipped signs.
int64_t scratch(const Call& call) {
  const auto& s = call.state<QuantizedMatmulState>();
  return s.q.flip_x ? s.chunk_rows * s.k + kSlack : 0;
}

// Packed y, then the constants of columns, each only if they depend on the call.
int64_t shared_scratch(const Call& call) {
  const auto& s = call.state<QuantizedMatmulState>();
  return (s.constant_y ? 0 : packed_bytes(s)) + (s.q.constant_columns ? 0 : column_bytes(s.q, s.num_y_batches));
}

void begin(const Call& call, std::byte* shared) {
  const auto& s = call.state<QuantizedMatmulState>();
  const std::byte* packed = s.constant_y ? s.packed->data() : shared;
  if (!s.constant_y) {
    pack_y(call.inputs[1], s, shared);
    shared += packed_bytes(s);
  }
  if (!s.q.constant_columns) fill(call, s, packed, shared);
}

void run(const Call& call, int axis, Range range, std::byte* scratch, const std::byte* shared) {
  const auto& s = call.state<QuantizedMatmulState>();
  const Tensor &x = call.inputs[0], &out = call.outputs[0];
  const ResolvedEpilogue& epilogue = s.q.output.epilogue;
  Range box[kMaxRank];
  int64_t num_outer = 1, num_rows = 1;
  for (int i = 0; i < out.rank; ++i) {
    box[i] = i == axis ? range : Range{0, out.shape[i]};
    if (i < s.num_axes) (i < s.num_outer ? num_outer : num_rows) *= box[i].end - box[i].begin;
  }
  const Range columns = box[out.rank - 1];
  if (num_outer * num_rows == 0 || columns.begin >= columns.end) return;
  const std::byte* packed = s.constant_y ? s.packed->data() : shared;
  const std::byte* column_data =
      s.q.constant_columns ? s.columns.data() : shared + (s.constant_y ? 0 : packed_bytes(s));
  auto* flipped = reinterpret_cast<uint8_t*>(scratch);

  const uint8_t* rows[kTileRows];
  DotTile tile{};
  tile.a = rows;
  tile.num_segments = 1;
  tile.length = s.k;
  tile.has_slack = s.q.flip_x;
  tile.panel_bytes = s.panel_bytes;
  tile.output = &s.q.output;
  tile.num_columns = s.n;
  for (int64_t outer = 0; outer < num_outer; ++outer) {
    const Offsets base = offsets(s, epilogue.num_extra, box, 0, s.num_outer, outer, {});
    point_to_columns(s.q, column_data, s.num_y_batches, base.y_batch, 0, tile);
    const auto row_at = [&](int64_t row) {
      return offsets(s, epilogue.num_extra, box, s.num_outer, s.num_axes, row, base);
    };
    for (int64_t first = 0; first < num_rows;) {
      const int64_t count = s.q.flip_x ? std::min(s.chunk_rows, num_rows - first) : num_rows;
      if (s.q.flip_x)
        for (int64_t i = 0; i < count; ++i)
          s.q.ops->flip(reinterpret_cast<const uint8_t*>(x.data + row_at(first + i).x), s.k, flipped + i * s.k);
      multiply_tiles(tile, s.q.ops->tile, packed + base.y_batch * s.batch_bytes, count, columns,
                     [&](int64_t row, int n, DotTile&) {
                       for (int i = 0; i < n; ++i) {
                         const Offsets at = row_at(first + row + i);
                         rows[i] =
                             s.q.flip_x ? flipped + (row + i) * s.k : reinterpret_cast<const uint8_t*>(x.data + at.x);
                         tile.out[i] = out.data + at.out;
                         for (int e = 0; e < epilogue.num_extra; ++e)
                           tile.extra[e][i] = call.inputs[epilogue.extra_operand[e]].data + at.extra[e];
                       }
                     });
      first += count;
    }
  }
}

template <class Attrs>
constexpr Kernel row(const char* dtypes, const char* layout) {
  return {
      .name = kNameOf<Attrs>,
      .dtypes = dtypes,
      .attrs = layout,
      .attrs_bytes = sizeof(Attrs),
      .accepts = "rows",
      .prepare = prepare<Attrs>,
      .cuts = cuts,
      .needs = needs,
      .cost = cost,
      .scratch = scratch,
      .shared_scratch = shared_scratch,
      .begin = begin,
      .run = run,
  };
}

constexpr const char* kLayout = "transpose_y:i output_scale:f output_zero:i epilogue:E";
constexpr const char* kQ31Layout = "transpose_y:i output_zero:i low:i high:i";

const Kernel kTable[] = {
    row<QuantizedMatmulAttrs>("8b,8b,*...->int8", kLayout),
    row<QuantizedMatmulAttrs>("8b,8b,*...->uint8", kLayout),
    row<QuantizedMatmulAttrs>("8b,8b,*...->int32", kLayout),
    row<QuantizedMatmulAttrs>("8b,8b,*...->fp32", kLayout),
    row<Q31MatmulAttrs>("8b,8b,int32,int32,8b,8b,int8->int8", kQ31Layout),
    row<Q31MatmulAttrs>("8b,8b,int32,int32,8b,8b,int8->uint8", kQ31Layout),
    row<Q31MatmulAttrs>("8b,8b,int64,int32,8b,8b,int8->int8", kQ31Layout),
    row<Q31MatmulAttrs>("8b,8b,int64,int32,8b,8b,int8->uint8", kQ31Layout),
};

}  // namespace

std::span<const Kernel> quantized_matmul_table() { return kTable; }

}  // namespace hexane::cpu
