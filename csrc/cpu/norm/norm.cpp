// layer_norm, rms_norm and its gradient: rows of the last axes, in fp32.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/norm/norm.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cpu/engine/exact_sum-inl.h"
#include "cpu/norm/norm-inl.h"

#include <algorithm>
#include <cmath>

#include "cpu/elementwise/elementwise.h"
#include "cpu/engine/activation.h"
#include "cpu/norm/norm.h"
#include "cpu/region.h"
#include "cpu/tables.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

struct RowAttributes {
  IntList axes;
  double epsilon;
};

int num_outer_axes(const Call& call) {
  return call.inputs[0].rank - static_cast<int>(call.attributes<RowAttributes>().axes.count);
}

template <bool kCenter, class T>
Prepared prepare_rows(const Call& call) {
  const char* name = kCenter ? "layer_norm" : "rms_norm";
  check_norm(name, call, 1, kCenter ? 3 : 2);
  const IntList& axes = call.attributes<RowAttributes>().axes;
  const Tensor& x = call.inputs[0];
  check_list(name, "axes", axes);
  for (int64_t i = 0; i < axes.count; ++i)
    if (const int axis = check_axis(name, axes.values[i], x.rank); axis != x.rank - axes.count + i)
      fail(name, "axes: got ", axis, " in place ", i, ", need the last ", axes.count, " axes in order");
  for (size_t i = 1; i < call.inputs.size(); ++i) {
    if (!given(call, i)) continue;
    const Tensor& parameter = call.inputs[i];
    if (parameter.rank != axes.count ||
        !std::equal(parameter.shape, parameter.shape + parameter.rank, x.shape + x.rank - axes.count))
      fail(name, "parameter ", i, " shape: got ", shape_text(parameter), ", need the last ", axes.count, " axes of ",
           shape_text(x));
  }
  if constexpr (!kIsEngine<T>) return nullptr;
  return half_map("rsqrt", 0, 0, call.numerics);
}

void row_cuts(const Call& call, Cuts& cuts) { cut_before(call, cuts, num_outer_axes(call)); }

Box row_needs(const Call& call, int input, const Box& out) {
  if (input > 0) return aligned(call.inputs[input], out);
  Box box = out;
  for (int axis = num_outer_axes(call); axis < out.rank; ++axis) box = all_along(call.inputs[0], axis, box);
  return box;
}

template <class T>
void affine_row(const T* x, T* y, int64_t n, Moments moments, const T* gamma, const T* beta) {
  const V mean = set(moments.mean), scale = set(moments.scale), shift = set(moments.shift);
  const auto normal = [&](V v) HWY_ATTR { return HWY_NAMESPACE::normal(v, mean, scale, shift); };
  if (gamma && beta) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(hn::MulAdd(normal(load(x + i)), load(gamma + i), load(beta + i)), y + i);
    if (i < n)
      store_part(hn::MulAdd(normal(load_part(x + i, n - i)), load_part(gamma + i, n - i), load_part(beta + i, n - i)),
                 y + i, n - i);
  } else if (gamma) {
    map(x, gamma, y, n, [&](V v, V g) HWY_ATTR { return hn::Mul(normal(v), g); });
  } else if (beta) {
    map(x, beta, y, n, [&](V v, V b) HWY_ATTR { return hn::Add(normal(v), b); });
  } else {
    map(x, y, n, normal);
  }
}

// Returns 1 / sqrt(variance + epsilon) by the engine's table. The argument and the result have the digits of fp16 and a
// wider exponent, so the variance does not overflow (docs/numerics/sums.md). A factor of 4 in the argument halves the
// result, so one table serves all exponents.
float engine_scale(const HalfMap& rsqrt, double variance, double epsilon) {
  constexpr double kOverflow = 65520, kDown = 0x1p-32;
  const auto digits = [](double x) { return x < kOverflow ? rounded(x) : rounded(x * kDown) * 0x1p32; };
  const double sum = double{digits(variance)} + as_fp16(epsilon);
  if (sum < kOverflow) return to_float(rsqrt(to_engine_half(sum)));
  const double step = sum * 0x1p-16 < kOverflow ? 0x1p-16 : kDown, root = step == kDown ? 0x1p-16 : 0x1p-8;
  return to_float(rsqrt(to_engine_half(sum * step))) * static_cast<float>(root);
}

// Normalises a row in the engine's steps, each rounded to fp16. Sums are exact, because the engine's order of addition
// is not known for long rows.
template <bool kCenter>
void engine_row(const HalfMap& rsqrt, const engine_half* x, engine_half* y, int64_t n, double epsilon,
                const engine_half* gamma, const engine_half* beta) {
  const auto itself = [](V v) HWY_ATTR { return v; };
  const auto multiply = [](V a, V b) HWY_ATTR { return hn::Mul(a, b); };
  const double count = static_cast<double>(n);
  const V mean = set(kCenter ? rounded(exact_sum(x, n, itself) / count) : 0);
  const auto centered = [&](V v) HWY_ATTR { return kCenter ? rounded(hn::Sub(v, mean)) : v; };
  const auto square = [&](V v) HWY_ATTR { return rounded(multiply(centered(v), centered(v))); };
  const V scale = set(engine_scale(rsqrt, exact_sum(x, n, square) / count, epsilon));
  map(x, y, n, [&](V v) HWY_ATTR { return hn::Mul(centered(v), scale); });
  if (gamma) map(y, gamma, y, n, multiply);
  if (beta) map(y, beta, y, n, [](V a, V b) HWY_ATTR { return hn::Add(a, b); });
}

template <bool kCenter, class T>
void run_rows(const Call& call, int cut, Range range, std::byte*, const std::byte*) {
  const Tensor& x = call.inputs[0];
  const Piece piece = make_piece(x, num_outer_axes(call), cut, range);
  const int64_t n = piece.channels * piece.inner;
  if (n == 0) return;
  const float epsilon = static_cast<float>(call.attributes<RowAttributes>().epsilon);
  const T* gamma = given(call, 1) ? call.inputs[1].as<const T>() : nullptr;
  const T* beta = given(call, 2) ? call.inputs[2].as<const T>() : nullptr;
  for_outer(piece, [&](int64_t row) HWY_ATTR {
    const T* from = x.as<const T>() + row * n;
    if constexpr (kIsEngine<T>)
      return engine_row<kCenter>(call.state<HalfMap>(), from, call.outputs[0].as<T>() + row * n, n,
                                 call.attributes<RowAttributes>().epsilon, gamma, beta);
    Moments moments;
    if constexpr (kCenter) {
      moments = row_moments(from, n, epsilon);
    } else {
      float squares[1];
      row_sums<1>(
          from, n, 0, [](V v, V* total) HWY_ATTR { total[0] = hn::MulAdd(v, v, total[0]); }, squares);
      moments.scale = 1 / std::sqrt(squares[0] / static_cast<float>(n) + epsilon);
    }
    affine_row(from, call.outputs[0].as<T>() + row * n, n, moments, gamma, beta);
  });
}

template <class T>
constexpr Kernel layer_norm() {
  return {
      .name = "layer_norm",
      .dtypes = sizeof(T) == 4 ? "fp32,fp32,fp32->fp32" : "fp16,fp16,fp16->fp16",
      .family = kFamily<T>,
      .attrs = "axes:L epsilon:f",
      .attrs_bytes = sizeof(RowAttributes),
      .accepts = "dense",
      .prepare = prepare_rows<true, T>,
      .cuts = row_cuts,
      .needs = row_needs,
      .cost = norm_cost<140, 20>,
      .run = run_rows<true, T>,
  };
}

template <class T>
constexpr Kernel rms_norm() {
  return {
      .name = "rms_norm",
      .dtypes = sizeof(T) == 4 ? "fp32,fp32->fp32" : "fp16,fp16->fp16",
      .family = kFamily<T>,
      .attrs = "axes:L epsilon:f",
      .attrs_bytes = sizeof(RowAttributes),
      .accepts = "dense",
      .prepare = prepare_rows<false, T>,
      .cuts = row_cuts,
      .needs = row_needs,
      .cost = norm_cost<140, 20>,
      .run = run_rows<false, T>,
  };
}

// ---- the gradient of rms_norm, x / root * gamma with root = sqrt(mean square of the row + epsilon): the gradient of
// x, and g * x / root, whose sum over the rows is the gradient of gamma ----

constexpr const char* kGradient = "rms_norm_gradient";

struct GradientAttributes {
  double epsilon;
};

// Inputs: x, g (the gradient of the result) and gamma. Outputs: the gradient of x, and g * x / root.
Prepared prepare_gradient(const Call& call) {
  const Tensor &x = call.inputs[0], &gamma = call.inputs[2];
  if (x.rank == 0) fail(kGradient, "x: got a number, need rows");
  for (const Tensor& in : call.inputs) check_dense(kGradient, "input", in);
  check_same_shape(kGradient, call.inputs[1], x);
  if (gamma.rank != 1 || gamma.shape[0] != x.shape[x.rank - 1])
    fail(kGradient, "gamma: got the shape ", shape_text(gamma), ", need one number for each of a row of ",
         shape_text(x));
  for (const Tensor& out : call.outputs) {
    check_dense(kGradient, "output", out);
    check_same_shape(kGradient, out, x);
  }
  return nullptr;
}

void gradient_cuts(const Call& call, Cuts& cuts) { cut_before(call, cuts, call.inputs[0].rank - 1); }

Box gradient_needs(const Call& call, int input, const Box& out) {
  if (input == 2) return whole(call.inputs[2]);
  return all_along(call.inputs[input], out.rank - 1, out);
}

void gradient_row(const float* x, const float* g, const float* gamma, float epsilon, int64_t n, float* dx,
                  float* share) {
  const auto read = [](const float* from, int64_t count)
                        HWY_ATTR { return count == kLanes ? load(from) : load_part(from, count); };
  float sums[2];  // sums of x * x and of x * g * gamma
  sums_of_places(
      n,
      [&](int64_t i, int64_t count, V* total) HWY_ATTR {
        const V v = read(x + i, count), h = hn::Mul(read(g + i, count), read(gamma + i, count));
        total[0] = hn::MulAdd(v, v, total[0]);
        total[1] = hn::MulAdd(h, v, total[1]);
      },
      sums);
  const float count = static_cast<float>(n), over = 1 / std::sqrt(sums[0] / count + epsilon);
  const V scale = set(over), mean = set(sums[1] * over / count);
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t some = std::min(n - i, kLanes);
    const V normal = hn::Mul(read(x + i, some), scale), gradient = read(g + i, some);
    const V along = hn::NegMulAdd(normal, mean, hn::Mul(gradient, read(gamma + i, some)));
    const auto write = [&](V v, float* to)
                           HWY_ATTR { some == kLanes ? store(v, to + i) : store_part(v, to + i, some); };
    write(hn::Mul(along, scale), dx);
    write(hn::Mul(gradient, normal), share);
  }
}

void run_gradient(const Call& call, int cut, Range range, std::byte*, const std::byte*) {
  const Tensor& x = call.inputs[0];
  const Piece piece = make_piece(x, x.rank - 1, cut, range);
  const int64_t n = piece.channels * piece.inner;
  if (n == 0) return;
  const float epsilon = static_cast<float>(call.attributes<GradientAttributes>().epsilon);
  for_outer(piece, [&](int64_t i) HWY_ATTR {
    const int64_t at = i * n;
    gradient_row(x.as<float>() + at, call.inputs[1].as<float>() + at, call.inputs[2].as<float>(), epsilon, n,
                 call.outputs[0].as<float>() + at, call.outputs[1].as<float>() + at);
  });
}

constexpr Kernel rms_norm_gradient() {
  return {
      .name = kGradient,
      .dtypes = "fp32,fp32,fp32->fp32,fp32",
      .attrs = "epsilon:f",
      .attrs_bytes = sizeof(GradientAttributes),
      .accepts = "dense",
      .prepare = prepare_gradient,
      .cuts = gradient_cuts,
      .needs = gradient_needs,
      .cost = norm_cost<400, 20>,
      .run = run_gradient,
  };
}

const Kernel kTable[] = {layer_norm<float>(),   layer_norm<float16_t>(), layer_norm<engine_half>(), rms_norm<float>(),
                         rms_norm<float16_t>(), rms_norm<engine_half>(), rms_norm_gradient()};

std::span<const Kernel> norm_kernels() { return kTable; }

}  // namespace
}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::cpu {
HWY_EXPORT(norm_kernels);
std::span<const Kernel> norm_table() { return HWY_DYNAMIC_DISPATCH(norm_kernels)(); }
}  // namespace hexane::cpu
#endif
