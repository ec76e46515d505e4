// scaled_dot_product_attention: softmax(query key' scale + mask) value, a block of queries at a time, in fp32 or in
// bf16.
//
//            keys                    The scores of a block of queries exist in scratch only: products into rows, mask
//   q [ s s s s s s ]  x  values     and softmax in place, products with the values into the output.
//   q [ s s s s s s ]
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attention/attention.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cpu/attention/attention_mask-inl.h"
#include "cpu/engine/engine_softmax-inl.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/attention/attention.h"
#include "cpu/elementwise/elementwise.h"
#include "cpu/matmul/bf16.h"
#include "cpu/tables.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

const ResolvedEpilogue kNoEpilogue{};

// Converts a row of queries to floats and multiplies it by the scale.
template <class T>
void scaled_row(const std::byte* from, int64_t stride, int64_t n, float scale, float* to) {
  const V factor = set(scale);
  gather<T>(from, stride, to, n);
  map(to, to, n, [&](V x) HWY_ATTR { return hn::Mul(x, factor); });
}

// Converts a row of queries for the engine's products. The engine applies the scale to the scores, not to the queries.
void engine_row(const Arithmetic& arithmetic, const std::byte* from, int64_t stride, int64_t n, float* to) {
  if (stride == sizeof(engine_half)) return arithmetic.to_floats(from, DType::kFp16, n, to);
  for (int64_t i = 0; i < n; ++i) arithmetic.to_floats(from + i * stride, DType::kFp16, 1, to + i);
}

// shown_keys() rounds up to a multiple of this. A sum over the rounded number of keys adds its terms in the same order
// as a sum over all keys.
constexpr int64_t kShownKeys = 64;

// Returns the number of leading keys that one row of queries needs: the mask sets all later scores to -infinity, so
// their weights are 0. Returns the number of all keys if the mask hides every key.
int64_t shown_keys(const Call& call, const AttentionState& s, const AttentionOffsets& at) {
  int64_t shown = s.causal ? std::min(at.position + 1, s.num_keys) : s.num_keys;
  if (s.masked && s.mask_column != 0) {
    const Tensor& mask = call.inputs[3];
    const std::byte* from = mask.data + at.mask;
    const auto last = [&](auto hides) {
      while (shown > 0 && hides(from + (shown - 1) * s.mask_column)) --shown;
    };
    if (mask.dtype == DType::kBool) {
      if (call.attributes<AttentionAttributes>().hidden == -INFINITY)
        last([](const std::byte* at) { return *at == std::byte{0}; });
    } else if (mask.dtype == DType::kFp32) {
      last([](const std::byte* at) {
        float value;
        std::memcpy(&value, at, sizeof value);
        return value == -kInfinity;
      });
    } else {
      last([](const std::byte* at) {
        uint16_t bits;
        std::memcpy(&bits, at, sizeof bits);
        return bits == 0xfc00;  // -infinity
      });
    }
  }
  return shown == 0 ? s.num_keys : std::min(ceil_div(shown, kShownKeys) * kShownKeys, s.num_keys);
}

void mask_row(const Call& call, const AttentionState& s, const AttentionOffsets& at, int64_t keys, float* scores) {
  if (s.causal && at.position + 1 < keys) std::fill(scores + at.position + 1, scores + keys, -kInfinity);
  if (!s.masked) return;
  const Tensor& mask = call.inputs[3];
  const std::byte* from = mask.data + at.mask;
  if (mask.dtype == DType::kBool)
    keep_masked(from, s.mask_column, keys, static_cast<float>(call.attributes<AttentionAttributes>().hidden), scores);
  else if (mask.dtype == DType::kFp32)
    add_mask<float>(from, s.mask_column, keys, scores);
  else if (s.maps.exp)
    add_mask<engine_half>(from, s.mask_column, keys, scores);
  else
    add_mask<float16_t>(from, s.mask_column, keys, scores);
}

// Turns a block's scores into weights in the engine's arithmetic, in place: scale, mask and softmax, each rounded to
// fp16.
void engine_weights(const Call& call, const AttentionState& s, const AttentionOffsets& at, float* scores) {
  const auto& attributes = call.attributes<AttentionAttributes>();
  const int64_t n = s.num_keys;
  const V scale = set(as_fp16(attributes.scale));
  map(scores, scores, n, [&](V x) HWY_ATTR { return rounded(hn::Mul(x, scale)); });
  if (s.masked || s.causal) {
    mask_row(call, s, at, n, scores);
    map(scores, scores, n, [](V x) HWY_ATTR { return rounded(x); });
  }
  if (s.zero_hidden && row_max(scores, n) == -kInfinity) return void(std::fill_n(scores, n, 0.0f));
  engine_softmax(s.maps, scores, n);
}

// Applies softmax to each row of scores in place. A row is padded to whole vectors; the padding has no meaning.
void softmax(const AttentionState& s, int64_t keys, float* scores) {
  const int64_t n = ceil_div(keys, kPanelLanes) * kPanelLanes;
  std::fill(scores + keys, scores + n, -kInfinity);
  const float sum = exponentials(scores, scores, n, row_max(scores, n));
  if (s.zero_hidden && std::isnan(sum)) return std::fill(scores, scores + n, 0.0f);
  const V factor = set(1 / sum);
  map(scores, scores, n, [&](V e) HWY_ATTR { return hn::Mul(e, factor); });
}

template <class T>
void run(const Call& call, int axis, Range range, std::byte* scratch, const std::byte* shared) {
  const auto& s = call.state<AttentionState>();
  const Tensor &query = call.inputs[0], &key = call.inputs[1], &value = call.inputs[2], &out = call.outputs[0];
  const AttentionBox box = attention_box(s, axis, range);
  if (box.num_outer * box.num_rows == 0) return;
  std::byte* own_panels = scratch;
  auto* queries = reinterpret_cast<float*>(scratch + (s.shared ? 0 : s.key_bytes + s.value_bytes));
  float* scores = queries + s.block_rows * s.depth;
  const int64_t pitch = s.row_floats();
  float* results = scores + s.block_rows * pitch;
  [[maybe_unused]] const float scale = static_cast<float>(call.attributes<AttentionAttributes>().scale);

  const bool pairs = is_bf16(*s.arithmetic);
  const auto to_pairs = [&](float* row, int64_t n) {  // converts a row in place
    s.arithmetic->to_floats(reinterpret_cast<const std::byte*>(row), DType::kFp32, n, row);
  };

  const float* rows[kMaxTileRows];
  Tile tile{};
  tile.a = rows;
  tile.num_segments = 1;
  tile.epilogue = &kNoEpilogue;
  for (int64_t outer = 0; outer < box.num_outer; ++outer) {
    const AttentionOffsets base = attention_offsets(s, box, 0, s.num_outer, outer, {});
    const std::byte* panels = own_panels;
    if (s.shared)
      panels = shared + base.matrix * (s.key_bytes + s.value_bytes);
    else if (!s.direct)
      pack_attention(call, base, own_panels, own_panels + s.key_bytes);
    for (int64_t first = 0; first < box.num_rows; first += s.block_rows) {
      const int64_t count = std::min(s.block_rows, box.num_rows - first);
      const auto locate = [&](int64_t row) {
        return attention_offsets(s, box, s.num_outer, s.num_axes, first + row, base);
      };
      for (int64_t i = 0; i < count; ++i) {
        const std::byte* from = query.data + locate(i).query;
        if constexpr (kIsEngine<T>)
          engine_row(*s.arithmetic, from, s.query_column, s.depth, queries + i * s.depth);
        else
          scaled_row<T>(from, s.query_column, s.depth, scale, queries + i * s.depth);
        if (pairs) to_pairs(queries + i * s.depth, s.depth);
      }
      const int64_t keys = s.direct ? shown_keys(call, s, locate(0)) : s.num_keys;  // with `direct` a block is one row
      if (s.direct) {
        multiply_row(queries, key.data + base.key, key.dtype, s.key_column, s.key_row, s.depth, s.num_keys, {0, keys},
                     scores);
      } else {
        tile.length = s.arithmetic->items(s.depth);
        tile.panel_bytes = s.key_panel_bytes;
        tile.num_columns = pitch;
        tile.half_output = false;
        multiply(
            tile, false, panels, count, {0, pitch},
            [&](int64_t row, int n, Tile& t) {
              for (int i = 0; i < n; ++i) {
                rows[i] = queries + (row + i) * s.depth;
                t.out[i] = reinterpret_cast<std::byte*>(scores + (row + i) * pitch);
              }
            },
            *s.arithmetic);
      }
      for (int64_t i = 0; i < count; ++i) {
        if constexpr (kIsEngine<T>) {
          engine_weights(call, s, locate(i), scores + i * pitch);
          continue;
        }
        if (s.masked || s.causal) mask_row(call, s, locate(i), keys, scores + i * pitch);
        softmax(s, keys, scores + i * pitch);
        if (pairs) to_pairs(scores + i * pitch, keys);
      }
      tile.length = s.arithmetic->items(keys);
      tile.num_columns = s.width;
      tile.half_output = sizeof(T) == 2;
      if (s.direct) {
        multiply_row(scores, value.data + base.value, value.dtype, s.value_row, s.value_column, keys, s.width,
                     {0, s.width}, results);
        tile.out[0] = out.data + locate(0).out;
        tile.column = 0;
        gemm_ops().finish_row(tile, results, s.width);
      } else {
        tile.panel_bytes = s.value_panel_bytes;
        multiply(
            tile, false, panels + s.key_bytes, count, {0, s.width},
            [&](int64_t row, int n, Tile& t) {
              for (int i = 0; i < n; ++i) {
                rows[i] = scores + (row + i) * pitch;
                t.out[i] = out.data + locate(row + i).out;
              }
            },
            *s.arithmetic);
      }
    }
  }
}

template <class T>
constexpr Kernel attention(const char* dtypes) {
  return {
      .name = "scaled_dot_product_attention",
      .dtypes = dtypes,
      .family = kFamily<T>,
      .attrs = "scale:f causal:i zero_hidden:i hidden:f",
      .attrs_bytes = sizeof(AttentionAttributes),
      .accepts = "strided",
      .prepare = kIsEngine<T> ? prepare_engine_attention : prepare_attention,
      .cuts = attention_cuts,
      .needs = attention_needs,
      .cost = attention_cost,
      .scratch = attention_scratch,
      .shared_scratch = attention_shared_scratch,
      .begin = attention_begin,
      .run = run<T>,
  };
}

// The operands of both products are rounded to bf16. Softmax is in fp32.
constexpr Kernel bf16_attention(const char* dtypes) {
  Kernel kernel = attention<float>(dtypes);
  kernel.name = "bf16_scaled_dot_product_attention";
  kernel.prepare = prepare_bf16_attention;
  return kernel;
}

const Kernel kTable[] = {
    attention<float>("fp32,fp32,fp32,fp32->fp32"),       attention<float>("fp32,fp32,fp32,bool->fp32"),
    attention<float16_t>("fp16,fp16,fp16,fp16->fp16"),   attention<float16_t>("fp16,fp16,fp16,bool->fp16"),
    attention<engine_half>("fp16,fp16,fp16,fp16->fp16"), attention<engine_half>("fp16,fp16,fp16,bool->fp16"),
    bf16_attention("fp32,fp32,fp32,fp32->fp32"),         bf16_attention("fp32,fp32,fp32,bool->fp32"),
};

std::span<const Kernel> attention_kernels() { return kTable; }

}  // namespace
}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::cpu {
HWY_EXPORT(attention_kernels);
std::span<const Kernel> attention_table() { return HWY_DYNAMIC_DISPATCH(attention_kernels)(); }
}  // namespace hexane::cpu
#endif
