// Checks the operands of quantised products, and computes the constants of each output column.
#include "cpu/quantized/quantized.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/quantized/q31.h"

namespace hexane::cpu {
namespace {

constexpr size_t kScale = 2, kBias = 3, kXZero = 4, kYZero = 5, kShift = 6;

const Tensor* optional(const Call& call, size_t i) {
  return i < call.inputs.size() && call.inputs[i].present() ? &call.inputs[i] : nullptr;
}

bool is_byte(DType dtype) { return dtype == DType::kInt8 || dtype == DType::kUint8; }

int32_t read_byte(const Tensor& t, int64_t i) {
  const std::byte* at = t.data + (t.rank > 0 ? i * t.strides[0] : 0);
  return t.dtype == DType::kInt8 ? *reinterpret_cast<const int8_t*>(at) : *reinterpret_cast<const uint8_t*>(at);
}

int64_t column_index(const Tensor& t, int64_t column) { return t.rank > 0 && t.shape[0] > 1 ? column : 0; }

template <class T>
T read_column(const Tensor& t, int64_t column) {
  T value;
  std::memcpy(&value, t.data + (t.rank > 0 ? column_index(t, column) * t.strides[0] : 0), sizeof(T));
  return value;
}

bool is_constant(const Tensor* t) { return !t || t->constant; }

// Folds the epilogue's clamps into the bounds of the result, by applying them to both infinities.
void fold_clamps(DotOutput& o, double output_scale) {
  o.in_bounds = true;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  float low = -kInfinity, high = kInfinity;
  for (int i = 0; i < o.epilogue.count; ++i) {
    const ResolvedSlot& slot = o.epilogue.slots[i];
    const bool relu = slot.kind == ResolvedSlot::kRelu;
    if (!relu && slot.kind != ResolvedSlot::kClamp) o.in_bounds = false;
    for (float* bound : {&low, &high}) *bound = std::min(relu ? kInfinity : slot.beta, std::max(slot.alpha, *bound));
  }
  if (!o.in_bounds) return;
  o.in_steps = is_byte(o.dtype);
  const auto stored = [&](float f) {
    const auto steps = o.in_steps ? static_cast<float>(f / output_scale) : f;
    return std::min(o.high, std::max(o.low, o.in_steps ? std::nearbyint(steps) + o.zero : f));
  };
  low = stored(low);
  o.high = stored(high);
  o.low = low;
}

// Replaces NaN and infinities by finite numbers, so that no sum times a scale is NaN.
float finite(double x) {
  constexpr double kMost = std::numeric_limits<float>::max();
  return std::isnan(x) ? 0.0f : static_cast<float>(std::clamp(x, -kMost, kMost));
}

// Checks x and y. Sets the fields that follow from them and from the output's dtype.
void set_bytes(const char* kernel, QuantizedState& s, const Call& call) {
  if (call.inputs.size() < 2 || call.outputs.size() != 1)
    fail(kernel, "got ", call.inputs.size(), " inputs and ", call.outputs.size(), " outputs, need at least 2 and 1");
  const Tensor &x = call.inputs[0], &y = call.inputs[1], &out = call.outputs[0];
  s.ops = &dot_ops();
  for (const Tensor* t : {&x, &y})
    if (!t->present() || !is_byte(t->dtype)) fail(kernel, "x and y: got another dtype, need int8 or uint8");
  s.flip_x = (x.dtype == DType::kInt8) != s.ops->signed_left;
  s.flip_y = y.dtype == DType::kUint8;
  s.output.dtype = out.dtype;
  s.output.in_steps = false;
}

}  // namespace

void set_quantized(const char* kernel, QuantizedState& s, const Call& call, const Q31Attrs& attrs) {
  set_bytes(kernel, s, call);
  DotOutput& o = s.output;
  if (!is_byte(o.dtype)) fail(kernel, "output: got ", info(o.dtype).name, ", need int8 or uint8");
  const Q31Output output = q31_output(kernel, o.dtype, attrs.output_zero, attrs.low, attrs.high);
  o.q31 = true;
  o.in_bounds = true;
  o.low = static_cast<float>(output.low);
  o.high = static_cast<float>(output.high);
  o.zero = static_cast<float>(output.zero);
  o.inverse_scale = 1;
  o.epilogue = {};
  s.output_scale = 1;
}

void set_quantized(const char* kernel, QuantizedState& s, const Call& call, const QuantizedAttrs& attrs) {
  set_bytes(kernel, s, call);
  DotOutput& o = s.output;
  o.epilogue = resolve_epilogue(kernel, call, attrs.epilogue);
  if (o.dtype != DType::kFp32 && o.epilogue.num_extra > 0)
    fail(kernel, "epilogue: got an added operand for ", info(o.dtype).name, " output, need fp32");
  if (o.dtype == DType::kInt32 && o.epilogue.count > 0)
    fail(kernel, "epilogue: got ", o.epilogue.count, " slots for int32 output, need none");
  o.low = -std::numeric_limits<float>::infinity();
  o.high = -o.low;
  o.inverse_scale = 1;
  o.zero = 0;
  s.output_scale = attrs.output_scale;
  if (is_byte(o.dtype)) {
    o.low = o.dtype == DType::kInt8 ? -128 : 0;
    o.high = o.low + 255;
    const auto scale = static_cast<float>(attrs.output_scale);
    if (!(scale > 0) || std::isinf(scale))
      fail(kernel, "output_scale: got ", attrs.output_scale, ", need a positive number");
    if (attrs.output_zero < static_cast<int64_t>(o.low) || attrs.output_zero > static_cast<int64_t>(o.high))
      fail(kernel, "output_zero: got ", attrs.output_zero, ", need what ", info(o.dtype).name, " can hold");
    o.inverse_scale = 1.0f / scale;
    o.zero = static_cast<float>(attrs.output_zero);
  }
  fold_clamps(o, attrs.output_scale);
}

void set_columns(const char* kernel, QuantizedState& s, const Call& call, int64_t num_columns, int64_t width) {
  s.num_columns = num_columns;
  s.width = width;
  const int64_t groups = width > 0 ? num_columns / width : 0;
  s.padded_columns =
      checked_product(kernel, {groups, ceil_div(std::max<int64_t>(width, 1), kPanelLanes) * kPanelLanes, 4}) / 4 +
      kColumnPadding;
  const Tensor *scale = optional(call, kScale), *bias = optional(call, kBias), *x_zero = optional(call, kXZero),
               *y_zero = optional(call, kYZero);
  const auto check = [&](const Tensor* t, const char* what, bool one_for_all, DType dtype) {
    if (!t) return;
    check_operand(kernel, what, *t);
    if (t->dtype != dtype) fail(kernel, what, ": got ", info(t->dtype).name, ", need ", info(dtype).name);
    if ((one_for_all && t->rank == 0) || (t->rank == 1 && t->shape[0] == num_columns)) return;
    fail(kernel, what, ": got shape ", shape_text(*t), ", need ", one_for_all ? "() or " : "", "(", num_columns, ",)");
  };
  const bool raw = s.output.dtype == DType::kInt32;
  const Tensor* shift = s.output.q31 ? optional(call, kShift) : nullptr;
  if (s.output.q31) {
    if (!scale) fail(kernel, "multiplier: got none, need one");
    s.output.doubles = scale->dtype == DType::kInt64;
    check(scale, "multiplier", true, s.output.doubles ? DType::kInt64 : DType::kInt32);
    check(shift, "shift", true, DType::kInt8);
    check(bias, "bias", false, DType::kInt32);
  } else if (raw == (scale != nullptr))
    fail(kernel, "scale: got ", raw ? "one for int32 output, need none" : "none, need one unless the output is int32");
  if (!s.output.q31) {
    check(scale, "scale", true, DType::kFp32);
    check(bias, "bias", false, bias && bias->dtype == DType::kFp32 && !raw ? DType::kFp32 : DType::kInt32);
  }
  check(y_zero, "y_zero", true, call.inputs[1].dtype);
  check(x_zero, "x_zero", true, call.inputs[0].dtype);
  if (x_zero && x_zero->rank > 0) fail(kernel, "x_zero: got shape ", shape_text(*x_zero), ", need ()");
  s.constant_columns = call.inputs[1].constant && is_constant(scale) && is_constant(shift) && is_constant(bias) &&
                       is_constant(x_zero) && is_constant(y_zero);
  s.has_row_factor = s.flip_y || (y_zero && !y_zero->constant);
  if (y_zero && y_zero->constant)
    for (int64_t i = 0; i < num_columns; ++i) s.has_row_factor |= right_zero(s, call, i) != 0;
}

int32_t left_zero(const QuantizedState& s, const Call& call) {
  const Tensor* zero = optional(call, kXZero);
  const int32_t value = zero ? read_byte(*zero, 0) : 0;
  return !s.flip_x ? value : call.inputs[0].dtype == DType::kInt8 ? value + 128 : value - 128;
}

int32_t right_zero(const QuantizedState& s, const Call& call, int64_t column) {
  const Tensor* zero = optional(call, kYZero);
  const int32_t value = zero ? read_byte(*zero, column_index(*zero, column)) : 0;
  return s.flip_y ? value - 128 : value;
}

void fill_columns(const QuantizedState& s, const Call& call, const int32_t* sums, int64_t num_starts, int64_t k,
                  std::byte* to) {
  auto* start = reinterpret_cast<uint32_t*>(to);
  auto* row_factor = start + num_starts * s.padded_columns;
  auto* scales = reinterpret_cast<float*>(row_factor + s.padded_columns);
  float *rests = scales + s.padded_columns, *biases = rests + s.padded_columns;
  const double step = s.output.in_steps ? s.output_scale : 1;
  std::memset(to, 0, static_cast<size_t>(column_bytes(s, num_starts)));
  const Tensor *scale = optional(call, kScale), *bias = optional(call, kBias);
  const auto x_zero = static_cast<uint32_t>(left_zero(s, call));
  const int64_t padding = s.width > 0 ? ceil_div(s.width, kPanelLanes) * kPanelLanes - s.width : 0;
  for (int64_t column = 0; column < s.num_columns; ++column) {
    const int64_t at = column + column / s.width * padding;
    const auto y_zero = s.has_row_factor ? static_cast<uint32_t>(right_zero(s, call, column)) : 0;
    uint32_t first = static_cast<uint32_t>(k) * x_zero * y_zero;
    if (bias && bias->dtype == DType::kInt32) first += static_cast<uint32_t>(read_column<int32_t>(*bias, column));
    for (int64_t set = 0; set < num_starts; ++set) {
      const int64_t i = set * s.padded_columns + at;
      start[i] = first - x_zero * static_cast<uint32_t>(sums[i]);
    }
    row_factor[at] = y_zero;
    if (s.output.q31) {
      const Tensor* shift = optional(call, kShift);
      const int32_t moved =
          shift ? std::clamp<int32_t>(read_column<int8_t>(*shift, column), kLeastShift, kMostShift) : 0;
      if (s.output.doubles) {
        const int64_t digits =
            std::clamp<int64_t>(read_column<int64_t>(*scale, column), 0, (int64_t{1} << kDigits) - 1);
        reinterpret_cast<double*>(scales)[at] = std::ldexp(static_cast<double>(digits), moved - kDigits);
        continue;
      }
      const int32_t multiplier = std::max(read_column<int32_t>(*scale, column), 0);
      std::memcpy(scales + at, &multiplier, 4);
      std::memcpy(rests + at, &moved, 4);
      continue;
    }
    if (scale) {
      const double exact = read_column<float>(*scale, column) / step;
      scales[at] = s.output.in_steps ? finite(exact) : static_cast<float>(exact);
      rests[at] = s.output.in_steps ? finite(exact - scales[at]) : 0;
      if (std::abs(exact) > std::numeric_limits<float>::max()) rests[at] = 0;
    }
    if (bias && bias->dtype == DType::kFp32) {
      const double exact = read_column<float>(*bias, column) / step;
      biases[at] = s.output.in_steps ? finite(exact) : static_cast<float>(exact);
    }
  }
}

void point_to_columns(const QuantizedState& s, const std::byte* columns, int64_t num_starts, int64_t set, int64_t first,
                      DotTile& tile) {
  const auto* values = reinterpret_cast<const int32_t*>(columns);
  const int32_t* shared = values + num_starts * s.padded_columns + first;
  tile.start = values + set * s.padded_columns + first;
  tile.row_factor = s.has_row_factor ? shared : nullptr;
  tile.scale = reinterpret_cast<const float*>(shared + s.padded_columns);
  tile.scale_rest = tile.scale + s.padded_columns;
  tile.bias = tile.scale_rest + s.padded_columns;
  tile.multiplier = shared + s.padded_columns;
  tile.shift = tile.multiplier + s.padded_columns;
  tile.factor = reinterpret_cast<const double*>(values + (num_starts + 1) * s.padded_columns) + first;
}

}  // namespace hexane::cpu
