// running_reduce: a sum, mean, maximum or minimum over the pixels of an image, row by row. [1, H, W, C] or [1, H, C] ->
// [1, H, L, C]: row r has the partial results over rows 0 to r; the last row has the result, then zeros. L is the
// number of levels of partial results for this many pixels (accumulate-inl.h). A run reads the row before its range
// from the output. The results equal reduce_sum, reduce_mean, reduce_max and reduce_min with kept channels, bit for
// bit.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/reduce/running_reduce.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cpu/reduce/accumulate-inl.h"

#include <algorithm>
#include <memory>

#include "cpu/operand.h"
#include "cpu/reduce/reduce.h"
#include "cpu/region.h"
#include "cpu/tables.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

constexpr const char* kName = "running_reduce";
constexpr int kMostLevels = 3;

struct Attributes {
  uint64_t kind;
};

// The extents of an image, and its strides.
struct Image {
  int64_t rows, columns, channels;
  int64_t row, column, channel;  // strides in bytes
};

Image image_of(const Tensor& in) {
  const bool flat = in.rank == 3;
  return {in.shape[1],   flat ? 1 : in.shape[2],   in.shape[in.rank - 1],
          in.strides[1], flat ? 0 : in.strides[2], in.strides[in.rank - 1]};
}

// Returns the number of levels. A level is used only after the previous level has been full once.
int64_t levels_of(std::string_view kind, const Image& image) {
  if (kind == "max" || kind == "min") return 1;
  int64_t levels = 1, rows = image.rows;
  for (int64_t most = kSteps; levels < kMostLevels && rows > most / image.columns; most *= kSteps) ++levels;
  return levels;
}

template <class R, class T>
void run_rows_of(const Call& call, Range range, bool is_mean) {
  const Image image = image_of(call.inputs[0]);
  const Tensor& out = call.outputs[0];
  const int64_t levels = out.shape[2];
  const auto place = [&](int64_t row, int64_t level, int64_t c) {
    return reinterpret_cast<float*>(out.data + out.kept_row(row) * out.strides[1] + level * out.strides[2]) + c;
  };
  const R reduce;
  for (int64_t row = range.begin; row < range.end; ++row) {
    const int64_t before = row * image.columns;
    for (int64_t c = 0; c < image.channels; c += kBlock) {
      const int64_t n = std::min(kBlock, image.channels - c);
      const int ways = static_cast<int>((n + kLanes - 1) / kLanes);
      Accumulator<R> sums(reduce);
      V* const of_level[kMostLevels] = {sums.part, sums.middle, sums.total};
      sums.steps = before % kSteps;
      sums.folds = before / kSteps % kSteps;
      alignas(64) float values[kBlock] = {};
      for (int64_t level = 0; row > 0 && level < levels; ++level) {
        std::copy_n(place(row - 1, level, c), n, values);
        for (int k = 0; k < ways; ++k) of_level[level][k] = load(values + k * kLanes);
      }
      const std::byte* pixel = call.inputs[0].data + row * image.row + c * image.channel;
      for (int64_t x = 0; x < image.columns; ++x, pixel += image.column) {
        for (int k = 0; k < ways; ++k)
          sums.part[k] = reduce.step(
              sums.part[k], load_columns<T>(pixel + k * kLanes * image.channel, image.channel, n - k * kLanes), k);
        sums.count(1);
      }
      const bool is_last = row + 1 == image.rows, is_joined = is_last || levels == 1;
      if (is_joined) sums.finish();
      for (int64_t level = 0; level < levels; ++level) {
        const V* from = is_joined ? sums.total : of_level[level];
        for (int k = 0; k < ways; ++k) store(from[k], values + k * kLanes);
        if (is_last && level > 0) std::fill_n(values, n, 0.0f);
        if (is_last && level == 0 && is_mean)
          for (int64_t i = 0; i < n; ++i) values[i] /= static_cast<float>(image.rows * image.columns);
        std::copy_n(values, n, place(row, level, c));
      }
    }
  }
}

template <class T>
void run_kind(const Call& call, int, Range range, std::byte*, const std::byte*) {
  const std::string_view kind = call.string(call.attributes<Attributes>().kind);
  if (kind == "max") return run_rows_of<Maximum, T>(call, range, false);
  if (kind == "min") return run_rows_of<Minimum, T>(call, range, false);
  run_rows_of<Sum, T>(call, range, kind == "mean");
}

Prepared prepare(const Call& call) {
  const std::string_view kind = call.string(call.attributes<Attributes>().kind);
  if (kind != "sum" && kind != "mean" && kind != "max" && kind != "min")
    fail(kName, "kind: got '", kind, "', need 'sum', 'mean', 'max' or 'min'");
  if (call.inputs.size() != 1 || call.outputs.size() != 1)
    fail(kName, "operands: got ", call.inputs.size(), " inputs and ", call.outputs.size(), " outputs, need 1 and 1");
  const Tensor &in = call.inputs[0], &out = call.outputs[0];
  check_operand(kName, "input", in);
  check_written(kName, "output", out);
  if ((in.rank != 3 && in.rank != 4) || in.shape[0] != 1 || in.size() == 0)
    fail(kName, "input: got ", shape_text(in), ", need (1, H, W, C) or (1, H, C) with elements");
  const Image image = image_of(in);
  const int64_t levels = levels_of(kind, image);
  if (out.rank != 4 || out.shape[0] != 1 || out.shape[1] != image.rows || out.shape[2] != levels ||
      out.shape[3] != image.channels)
    fail(kName, "output: got ", shape_text(out), ", need (1, ", image.rows, ", ", levels, ", ", image.channels, ")");
  if (out.shape[3] > 1 && out.strides[3] != sizeof(float))
    fail(kName, "output: got channels ", out.strides[3], " bytes apart, need them dense");
  return nullptr;
}

void cut_rows(const Call& call, Cuts& cuts) { cuts.add(1, call.outputs[0].shape[1]); }

Box needs(const Call& call, int, const Box& out) {
  Box box = whole(call.inputs[0]);
  box[1] = out[1];
  box[call.inputs[0].rank - 1] = out[3];
  return box;
}

template <class T>
constexpr Kernel kernel() {
  return {
      .name = kName,
      .dtypes = sizeof(T) == 4 ? "fp32->fp32" : "fp16->fp32",
      .attrs = "kind:s",
      .attrs_bytes = sizeof(Attributes),
      .accepts = "strided",
      .prepare = prepare,
      .cuts = cut_rows,
      .needs = needs,
      .cost = reduce_cost<65>,
      .run = run_kind<T>,
      .in_order = true,
  };
}

const Kernel kTable[] = {kernel<float>(), kernel<float16_t>()};

std::span<const Kernel> running_reduce_kernels() { return kTable; }

}  // namespace
}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::cpu {
HWY_EXPORT(running_reduce_kernels);
std::span<const Kernel> running_reduce_table() { return HWY_DYNAMIC_DISPATCH(running_reduce_kernels)(); }
}  // namespace hexane::cpu
#endif
