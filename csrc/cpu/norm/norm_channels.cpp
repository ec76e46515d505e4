// Normalisations with parameters per channel, and across channels: batch_norm, instance_norm, local_response_norm, in
// fp32.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/norm/norm_channels.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cpu/norm/norm-inl.h"
#include "cpu/simd/math-inl.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "cpu/elementwise/elementwise.h"
#include "cpu/norm/norm.h"
#include "cpu/region.h"
#include "cpu/tables.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

// ---- batch_norm: (x - mean[c]) scale[c] + shift[c] ----

struct BatchAttributes {
  double epsilon;
  int64_t axis;
};

int batch_axis(const Call& call) {
  const int64_t axis = call.attributes<BatchAttributes>().axis;
  return static_cast<int>(axis < 0 ? axis + call.inputs[0].rank : axis);
}

Prepared prepare_batch(const Call& call) {
  check_norm("batch_norm", call, 3, 5);
  const Tensor& x = call.inputs[0];
  check_per_channel("batch_norm", call,
                    x.shape[check_axis("batch_norm", call.attributes<BatchAttributes>().axis, x.rank)]);
  return nullptr;
}

void batch_cuts(const Call& call, Cuts& cuts) { cut_before(call, cuts, batch_axis(call) + 1); }

Box batch_needs(const Call& call, int input, const Box& out) {
  return input == 0 ? out : Box{1, {out[batch_axis(call)]}};
}

int64_t batch_scratch(const Call& call) {
  return 3 * (call.inputs[0].shape[batch_axis(call)] + kLanes) * static_cast<int64_t>(sizeof(float));
}

template <class T>
float parameter(const Call& call, size_t input, int64_t c, float otherwise) {
  if (!given(call, input)) return otherwise;
  return hn::GetLane(load_part(call.inputs[input].as<const T>() + c, 1));
}

template <class T>
void run_batch(const Call& call, int cut, Range range, std::byte* scratch, const std::byte*) {
  const Piece piece = make_piece(call.inputs[0], batch_axis(call), cut, range);
  const float epsilon = static_cast<float>(call.attributes<BatchAttributes>().epsilon);
  float* mean = reinterpret_cast<float*>(scratch);
  float* scale = mean + piece.channels;
  float* shift = scale + piece.channels;
  for (int64_t c = piece.first_channel; c < piece.last_channel; ++c) {
    mean[c] = parameter<T>(call, 1, c, 0);
    scale[c] = parameter<T>(call, 3, c, 1) / std::sqrt(parameter<T>(call, 2, c, 1) + epsilon);
    shift[c] = parameter<T>(call, 4, c, 0);
  }
  const T* x = call.inputs[0].as<const T>();
  T* y = call.outputs[0].as<T>();
  const int64_t first = piece.first_channel, count = piece.last_channel - first;
  for_outer(piece, [&](int64_t o) HWY_ATTR {
    if (piece.inner == 1) {
      const int64_t at = o * piece.channels + first;
      int64_t c = 0;
      for (; c + kLanes <= count; c += kLanes)
        store(hn::MulAdd(hn::Sub(load(x + at + c), load(mean + first + c)), load(scale + first + c),
                         load(shift + first + c)),
              y + at + c);
      if (const int64_t left = count - c)
        store_part(hn::MulAdd(hn::Sub(load_part(x + at + c, left), load_part(mean + first + c, left)),
                              load_part(scale + first + c, left), load_part(shift + first + c, left)),
                   y + at + c, left);
      return;
    }
    for (int64_t c = first; c < piece.last_channel; ++c) {
      const int64_t at = (o * piece.channels + c) * piece.inner;
      const V m = set(mean[c]), s = set(scale[c]), b = set(shift[c]);
      map(x + at, y + at, piece.inner, [&](V v) HWY_ATTR { return hn::MulAdd(hn::Sub(v, m), s, b); });
    }
  });
}

// ---- instance_norm: normalises each channel of each item over its spatial axes ----

struct InstanceAttributes {
  double epsilon;
  uint64_t layout;
};

bool channels_last(const Call& call) { return call.string(call.attributes<InstanceAttributes>().layout) == "nhwc"; }

Prepared prepare_instance(const Call& call) {
  check_norm("instance_norm", call, 1, 3);
  const std::string_view layout = call.string(call.attributes<InstanceAttributes>().layout);
  if (layout != "nchw" && layout != "nhwc") fail("instance_norm", "layout: got '", layout, "', need 'nchw' or 'nhwc'");
  const Tensor& x = call.inputs[0];
  if (x.rank < 2) fail("instance_norm", "rank: got ", x.rank, ", need at least 2");
  check_per_channel("instance_norm", call, x.shape[layout == "nhwc" ? x.rank - 1 : 1]);
  return nullptr;
}

void instance_cuts(const Call& call, Cuts& cuts) {
  const Tensor& out = call.outputs[0];
  const int channel = channels_last(call) ? out.rank - 1 : 1;
  for (const int axis : {0, channel})
    if (out.shape[axis] > 1) cuts.add(axis, out.shape[axis]);
}

Box instance_needs(const Call& call, int input, const Box& out) {
  const int channel = channels_last(call) ? out.rank - 1 : 1;
  if (input > 0) return {1, {out[channel]}};
  Box box = whole(call.inputs[0]);
  for (const int axis : {0, channel}) box[axis] = out[axis];
  return box;
}

// Normalises kVectors vectors of channels of one batch item, stored as (rows, channels) with adjacent channels. `last`
// is the number of channels of the last vector.
template <int kVectors, class T>
void normalise_columns(const T* x, T* y, int64_t rows, int64_t channels, int64_t last, float epsilon, const V* gamma,
                       const V* beta) {
  const auto at = [&](int64_t i, int v) HWY_ATTR {
    const T* from = x + i * channels + v * kLanes;
    return v < kVectors - 1 || last == kLanes ? load(from) : load_part(from, last);
  };
  struct Sums {
    V first, second;
  };
  const int64_t block = sum_block(rows);
  const auto mean_of = [&](Sums(&total)[kVectors], const auto& step) HWY_ATTR {
    for (Sums& sums : total) sums = {set(0), set(0)};
    for (int64_t i = 0; i < rows;) {
      Sums part[kVectors];
      for (Sums& sums : part) sums = {set(0), set(0)};
      for (const int64_t end = std::min(rows, i + block); i < end; ++i)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) step(at(i, v), v, part[v]);
      for (int v = 0; v < kVectors; ++v)
        total[v] = {hn::Add(total[v].first, part[v].first), hn::Add(total[v].second, part[v].second)};
    }
    const V count = set(static_cast<float>(rows));
    for (Sums& sums : total) sums = {hn::Div(sums.first, count), hn::Div(sums.second, count)};
  };
  Sums means[kVectors], about[kVectors];  // the moments of row_moments()
  mean_of(means, [](V x, int, Sums& sums) HWY_ATTR { sums.first = hn::Add(sums.first, x); });
  mean_of(about, [&](V x, int v, Sums& sums) HWY_ATTR {
    const V d = hn::Sub(x, means[v].first);
    sums = {hn::Add(sums.first, d), hn::MulAdd(d, d, sums.second)};
  });
  V scale[kVectors], shift[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    const V rest = about[v].first;
    const V variance = hn::Max(set(0), hn::NegMulAdd(rest, rest, about[v].second));
    scale[v] = hn::Div(set(1), hn::Sqrt(hn::Add(variance, set(epsilon))));
    shift[v] = hn::Neg(hn::Mul(rest, scale[v]));
  }
  for (int64_t i = 0; i < rows; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const V result = hn::MulAdd(normal(at(i, v), means[v].first, scale[v], shift[v]), gamma[v], beta[v]);
      T* to = y + i * channels + v * kLanes;
      if (v < kVectors - 1 || last == kLanes)
        store(result, to);
      else
        store_part(result, to, last);
    }
}

// Calls normalise_columns() for `columns` channels from channel c on, at most kMostVectors vectors.
constexpr int kMostVectors = 4;
template <class T>
void normalise_some(const Call& call, const T* x, T* y, int64_t rows, int64_t channels, int64_t c, int64_t columns,
                    float epsilon) {
  const int64_t vectors = (columns + kLanes - 1) / kLanes, last = columns - (vectors - 1) * kLanes;
  V gamma[kMostVectors], beta[kMostVectors];
  for (int64_t v = 0; v < vectors; ++v) {
    const int64_t count = v < vectors - 1 ? kLanes : last;
    gamma[v] = given(call, 1) ? load_part(call.inputs[1].as<const T>() + c + v * kLanes, count) : set(1);
    beta[v] = given(call, 2) ? load_part(call.inputs[2].as<const T>() + c + v * kLanes, count) : set(0);
  }
  const auto run = [&](auto number) { normalise_columns<number>(x, y, rows, channels, last, epsilon, gamma, beta); };
  switch (vectors) {
    case 1:
      return run(std::integral_constant<int, 1>());
    case 2:
      return run(std::integral_constant<int, 2>());
    case 3:
      return run(std::integral_constant<int, 3>());
    default:
      return run(std::integral_constant<int, 4>());
  }
}

template <class T>
void run_instance(const Call& call, int cut, Range range, std::byte*, const std::byte*) {
  const Tensor& x = call.inputs[0];
  const float epsilon = static_cast<float>(call.attributes<InstanceAttributes>().epsilon);
  const bool last = channels_last(call);
  const int channel_axis = last ? x.rank - 1 : 1;
  const int64_t items = x.shape[0], channels = x.shape[channel_axis];
  const int64_t rows = last ? product(x, 1, x.rank - 1) : product(x, 2, x.rank);
  if (rows == 0) return;
  const Range all_items = cut == 0 ? range : Range{0, items};
  const Range all_channels = cut == channel_axis ? range : Range{0, channels};
  const T* from = x.as<const T>();
  T* to = call.outputs[0].as<T>();
  for (int64_t item = all_items.begin; item < all_items.end; ++item) {
    if (!last || channels == 1) {  // with one channel, both layouts are the same memory
      for (int64_t c = all_channels.begin; c < all_channels.end; ++c) {
        const int64_t at = (item * channels + c) * rows;
        const Moments moments = row_moments(from + at, rows, epsilon);
        const V mean = set(moments.mean), scale = set(moments.scale), shift = set(moments.shift);
        const V gamma = set(parameter<T>(call, 1, c, 1)), beta = set(parameter<T>(call, 2, c, 0));
        map(from + at, to + at, rows,
            [&](V v) HWY_ATTR { return hn::MulAdd(normal(v, mean, scale, shift), gamma, beta); });
      }
      continue;
    }
    constexpr int64_t kStep = kMostVectors * kLanes;
    for (int64_t c = all_channels.begin; c < all_channels.end; c += kStep) {
      const int64_t columns = std::min(kStep, all_channels.end - c), at = item * rows * channels + c;
      normalise_some(call, from + at, to + at, rows, channels, c, columns, epsilon);
    }
  }
}

// ---- local_response_norm: x / (k + alpha / size * sum of squares of near channels)^beta ----

struct ResponseAttributes {
  double alpha, beta, k;
  int64_t size, axis;
};

int response_axis(const Call& call) {
  const int64_t axis = call.attributes<ResponseAttributes>().axis;
  return static_cast<int>(axis < 0 ? axis + call.inputs[0].rank : axis);
}

Prepared prepare_response(const Call& call) {
  check_norm("local_response_norm", call, 1, 1);
  const auto& attributes = call.attributes<ResponseAttributes>();
  check_axis("local_response_norm", attributes.axis, call.inputs[0].rank);
  if (attributes.size < 1) fail("local_response_norm", "size: got ", attributes.size, ", need at least 1");
  return nullptr;
}

void response_cuts(const Call& call, Cuts& cuts) { cut_before(call, cuts, response_axis(call)); }

Box response_needs(const Call& call, int, const Box& out) {
  const int axis = response_axis(call);
  const int64_t size = call.attributes<ResponseAttributes>().size, channels = call.inputs[0].shape[axis];
  const int64_t before = std::min((size - 1) / 2, channels), after = std::min(size / 2, channels);
  Box box = out;
  box[axis] = reached(out[axis], 1, before, before + after + 1, channels);
  return box;
}

// local_response_norm in the engine's arithmetic: the formula in fp64, rounded once. The engine's own steps for this op
// are not known.
void response_line(const ResponseAttributes& attributes, const engine_half* x, engine_half* y, int64_t channels,
                   int64_t stride, int64_t before, int64_t after) {
  const double factor = attributes.alpha / static_cast<double>(attributes.size);
  for (int64_t c = 0; c < channels; ++c) {
    double squares = 0;
    for (int64_t near = std::max<int64_t>(c - before, 0); near <= std::min(c + after, channels - 1); ++near) {
      const double v = to_float(x[near * stride]);
      squares += v * v;
    }
    y[c * stride] =
        to_engine_half(to_float(x[c * stride]) * std::pow(attributes.k + factor * squares, -attributes.beta));
  }
}

// Computes channel c at [i, i + count) of the inner axis, or if channels are innermost, channels [c, c + count).
template <class T>
void run_response(const Call& call, int cut, Range range, std::byte*, const std::byte*) {
  const auto& attributes = call.attributes<ResponseAttributes>();
  const Piece piece = make_piece(call.inputs[0], response_axis(call), cut, range);
  const int64_t before = std::min((attributes.size - 1) / 2, piece.channels);
  const int64_t after = std::min(attributes.size / 2, piece.channels);
  const int64_t block = sum_block(before + after + 1);
  const V factor = set(static_cast<float>(attributes.alpha / static_cast<double>(attributes.size)));
  const V k = set(static_cast<float>(attributes.k)), power = set(static_cast<float>(-attributes.beta));
  const auto result = [&](V x, V squares)
                          HWY_ATTR { return hn::Mul(x, exp(hn::Mul(power, log(hn::MulAdd(squares, factor, k))))); };
  for_outer(piece, [&](int64_t o) HWY_ATTR {
    const T* x = call.inputs[0].as<const T>() + o * piece.channels * piece.inner;
    T* y = call.outputs[0].as<T>() + o * piece.channels * piece.inner;
    if constexpr (kIsEngine<T>) {
      for (int64_t i = 0; i < piece.inner; ++i)
        response_line(attributes, x + i, y + i, piece.channels, piece.inner, before, after);
      return;
    }
    for (int64_t c = 0; c < piece.channels; ++c) {
      const int64_t low = std::max<int64_t>(c - before, 0), high = std::min(c + after, piece.channels - 1);
      for (int64_t i = 0; i < piece.inner; i += kLanes) {
        const int64_t count = std::min(kLanes, piece.inner - i);
        V squares = set(0);
        for (int64_t near = low; near <= high;) {
          V part = set(0);
          for (const int64_t end = std::min(high + 1, near + block); near < end; ++near) {
            const T* at = x + near * piece.inner + i;
            const V v = count == kLanes ? load(at) : load_part(at, count);
            part = hn::MulAdd(v, v, part);
          }
          squares = hn::Add(squares, part);
        }
        const T* at = x + c * piece.inner + i;
        store_part(result(count == kLanes ? load(at) : load_part(at, count), squares), y + c * piece.inner + i, count);
      }
    }
  });
}

template <class T>
constexpr Kernel batch_norm() {
  return {
      .name = "batch_norm",
      .dtypes = sizeof(T) == 4 ? "fp32,fp32...->fp32" : "fp16,fp16...->fp16",
      .attrs = "epsilon:f axis:i",
      .attrs_bytes = sizeof(BatchAttributes),
      .accepts = "dense",
      .prepare = prepare_batch,
      .cuts = batch_cuts,
      .needs = batch_needs,
      .cost = norm_cost<90, 0>,
      .scratch = batch_scratch,
      .run = run_batch<T>,
  };
}

template <class T>
constexpr Kernel instance_norm() {
  return {
      .name = "instance_norm",
      .dtypes = sizeof(T) == 4 ? "fp32,fp32,fp32->fp32" : "fp16,fp16,fp16->fp16",
      .attrs = "epsilon:f layout:s",
      .attrs_bytes = sizeof(InstanceAttributes),
      .accepts = "dense",
      .prepare = prepare_instance,
      .cuts = instance_cuts,
      .needs = instance_needs,
      .cost = norm_cost<200, 0>,
      .run = run_instance<T>,
  };
}

template <class T>
constexpr Kernel local_response_norm() {
  return {
      .name = "local_response_norm",
      .dtypes = sizeof(T) == 4 ? "fp32->fp32" : "fp16->fp16",
      .family = kFamily<T>,
      .attrs = "alpha:f beta:f k:f size:i axis:i",
      .attrs_bytes = sizeof(ResponseAttributes),
      .accepts = "dense",
      .prepare = prepare_response,
      .cuts = response_cuts,
      .needs = response_needs,
      .cost = norm_cost<1430, 0>,
      .run = run_response<T>,
  };
}

const Kernel kTable[] = {
    batch_norm<float>(),
    batch_norm<float16_t>(),
    instance_norm<float>(),
    instance_norm<float16_t>(),
    local_response_norm<float>(),
    local_response_norm<float16_t>(),
    local_response_norm<engine_half>(),
};

std::span<const Kernel> channel_norm_kernels() { return kTable; }

}  // namespace
}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::cpu {
HWY_EXPORT(channel_norm_kernels);
std::span<const Kernel> channel_norm_table() { return HWY_DYNAMIC_DISPATCH(channel_norm_kernels)(); }
}  // namespace hexane::cpu
#endif
