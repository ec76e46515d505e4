// quantize_by_range: fp32 to int8, with a scale and zero point computed from the range of each row. A row has all axes
// of x from `axis` on. Outputs: the integers, the scale and the zero point of each row, both fp32. The operations are
// TFLite's, in fp32, each rounded once.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/quantized/quantize_by_range.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cpu/quantized/quantize-inl.h"

#include <algorithm>
#include <cmath>

#include "cpu/operand.h"
#include "cpu/tables.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

constexpr const char* kName = "quantize_by_range";
constexpr float kFar = 512;               // distance in steps of the scale that no zero point shifts into int8
constexpr float kLeastScale = 0x1p-126F;  // the smallest scale whose inverse is finite
constexpr int kParts = 4;

struct Attrs {
  int64_t axis, symmetric;
};

struct Ends {
  float low, high;
};

struct RangeGrid {
  float scale, zero, inverse, least;
};

// Returns the smallest and the largest number, both NaN if the row has a NaN. n: at least 1.
Ends find_ends(const float* x, int64_t n) {
  V low[kParts], high[kParts], same[kParts];
  for (int k = 0; k < kParts; ++k) low[k] = high[k] = set(x[0]), same[k] = set(0);
  const auto add = [&](int k, V v) HWY_ATTR {
    low[k] = hn::Min(low[k], v);
    high[k] = hn::Max(high[k], v);
    same[k] = hn::IfThenElse(hn::Eq(v, v), same[k], v);  // same[k] keeps a NaN, which Min and Max may lose
  };
  int64_t i = 0;
  for (; i + kParts * kLanes <= n; i += kParts * kLanes)
    for (int k = 0; k < kParts; ++k) add(k, load(x + i + k * kLanes));
  for (; i + kLanes <= n; i += kLanes) add(0, load(x + i));
  if (i < n) add(1, load_part(x + i, n - i, x[0]));
  for (int k = 1; k < kParts; ++k) {
    low[0] = hn::Min(low[0], low[k]);
    high[0] = hn::Max(high[0], high[k]);
    same[0] = hn::Add(same[0], same[k]);
  }
  const float nan = hn::GetLane(hn::SumOfLanes(D(), same[0]));
  if (nan != nan) return {nan, nan};
  return {hn::GetLane(hn::MinOfLanes(D(), low[0])), hn::GetLane(hn::MaxOfLanes(D(), high[0]))};
}

float nearest(float x) {
  if (!(x == x)) return 0;
  const float size = std::min(std::fabs(x), kFar), whole = std::floor(size);
  return std::copysign(whole + (size - whole >= 0.5F ? 1.0F : 0.0F), x) + 0.0F;  // turns -0 into 0
}

RangeGrid symmetric_grid(Ends ends) {
  const float largest = ends.low == ends.low ? std::max(std::fabs(ends.low), std::fabs(ends.high)) : ends.low;
  if (largest == 0) return {1, 0, 127, -127};
  if (largest < 127 * kLeastScale) return {kLeastScale, 0, 1 / kLeastScale, -127};
  return {largest / 127, 0, 127 / largest, -127};
}

RangeGrid moved_grid(Ends ends) {
  const float low = ends.low > 0 ? 0 : ends.low, high = ends.high < 0 ? 0 : ends.high;
  if (low == high) return {1, 0, 1, -128};
  const float scale = std::max((high - low) / 255, kLeastScale), from_low = low / scale, from_high = high / scale;
  const bool is_low = std::fabs(from_low) + 128 < std::fabs(from_high) + 127;
  const float end = is_low ? -128 - from_low : 127 - from_high;
  return {scale, std::clamp(nearest(end), -128.0F, 127.0F), 1 / scale, -128};
}

void quantize_row(const float* x, int8_t* to, int64_t n, const RangeGrid& grid) {
  const V inverse = set(grid.inverse), far = set(kFar), half = set(0.5F), one = set(1), zero = set(grid.zero),
          least = set(grid.least), most = set(127);
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t left = n - i;
    const V steps = hn::Mul(left < kLanes ? load_part(x + i, left) : load(x + i), inverse);
    const V number = hn::IfThenElseZero(hn::Eq(steps, steps), steps);
    const V size = hn::Min(hn::Abs(number), far), whole = hn::Trunc(size);
    const V rounded = hn::Add(whole, hn::IfThenElseZero(hn::Ge(hn::Sub(size, whole), half), one));
    const V moved = hn::Add(hn::CopySign(rounded, number), zero);
    store_integers(hn::ConvertTo(DI(), hn::Min(most, hn::Max(least, moved))), to + i, left);
  }
}

int64_t row_size(const Tensor& x, int axis) {
  int64_t n = 1;
  for (int i = axis; i < x.rank; ++i) n *= x.shape[i];
  return n;
}

Prepared prepare(const Call& call) {
  if (call.inputs.size() != 1 || call.outputs.size() != 3)
    fail(kName, "got ", call.inputs.size(), " inputs and ", call.outputs.size(), " outputs, need 1 and 3");
  const Tensor &x = call.inputs[0], &scale = call.outputs[1];
  check_dense(kName, "x", x);
  const int axis = check_axis(kName, call.attributes<Attrs>().axis, x.rank);
  check_same_shape(kName, call.outputs[0], x);
  check_same_shape(kName, call.outputs[2], scale);
  for (const Tensor& out : call.outputs) check_dense(kName, "output", out);
  bool fits = scale.rank == x.rank && row_size(x, axis) > 0;
  for (int i = 0; fits && i < x.rank; ++i) fits = scale.shape[i] == (i < axis ? x.shape[i] : 1);
  if (!fits)
    fail(kName, "got x ", shape_text(x), " and scales ", shape_text(scale), ", need one for each row of elements");
  return nullptr;
}

int64_t cost(const Call& call) { return 30 + call.inputs[0].size() / 4; }

void run(const Call& call, int, Range, std::byte*, const std::byte*) {
  const auto& attrs = call.attributes<Attrs>();
  const Tensor& x = call.inputs[0];
  const int64_t n = row_size(x, check_axis(kName, attrs.axis, x.rank)), rows = call.outputs[1].size();
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = x.as<float>() + row * n;
    const Ends ends = find_ends(from, n);
    const RangeGrid grid = attrs.symmetric ? symmetric_grid(ends) : moved_grid(ends);
    quantize_row(from, call.outputs[0].as<int8_t>() + row * n, n, grid);
    call.outputs[1].as<float>()[row] = grid.scale;
    call.outputs[2].as<float>()[row] = grid.zero;
  }
}

const Kernel kTable[] = {{
    .name = kName,
    .dtypes = "fp32->int8,fp32,fp32",
    .attrs = "axis:i symmetric:i",
    .attrs_bytes = sizeof(Attrs),
    .accepts = "dense",
    .prepare = prepare,
    .cost = cost,
    .run = run,
}};

std::span<const Kernel> quantize_by_range_kernels() { return kTable; }

}  // namespace
}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::cpu {
HWY_EXPORT(quantize_by_range_kernels);
std::span<const Kernel> quantize_by_range_table() { return HWY_DYNAMIC_DISPATCH(quantize_by_range_kernels)(); }
}  // namespace hexane::cpu
#endif
