// Normalisation of dense tensors: layer_norm, rms_norm, instance_norm, batch_norm and local_response_norm, computed in
// fp32. A tensor is (outer, channels, inner) around a channel axis, or (rows, n) before the last axes.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/norm.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cpu/math-inl.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "cpu/operand.h"
#include "cpu/tables.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

constexpr int kWays = 4;

// ---- checks and shapes ----

void check_dense(const char* kernel, const char* operand, const Tensor& tensor) {
  check_operand(kernel, operand, tensor);
  int64_t stride = item_bytes(tensor);
  for (int i = tensor.rank - 1; i >= 0; --i) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != stride && tensor.size() != 0)
      fail(kernel, operand, " axis ", i, ": got stride ", tensor.strides[i], ", need ", stride);
    stride *= std::max<int64_t>(tensor.shape[i], 1);
  }
}

bool given(const Call& call, size_t input) { return input < call.inputs.size() && call.inputs[input].present(); }

// One input and up to `most - 1` more, dense, an output like the input.
void check_norm(const char* kernel, const Call& call, size_t least, size_t most) {
  if (call.inputs.size() < least || call.inputs.size() > most || call.outputs.size() != 1)
    fail(kernel, "operands: got ", call.inputs.size(), " inputs and ", call.outputs.size(), " outputs, need ", least,
         " to ", most, " and 1");
  check_dense(kernel, "input", call.inputs[0]);
  check_dense(kernel, "output", call.outputs[0]);
  check_same_shape(kernel, call.outputs[0], call.inputs[0]);
  for (size_t i = 1; i < most; ++i) {
    if (given(call, i))
      check_dense(kernel, "parameter", call.inputs[i]);
    else if (i < least)
      fail(kernel, "parameter ", i, ": got none, need an operand");
  }
}

void check_per_channel(const char* kernel, const Call& call, int64_t channels) {
  for (size_t i = 1; i < call.inputs.size(); ++i)
    if (given(call, i) && (call.inputs[i].rank != 1 || call.inputs[i].shape[0] != channels))
      fail(kernel, "parameter ", i, " shape: got ", shape_text(call.inputs[i]), ", need (", channels, ",)");
}

int64_t product(const Tensor& tensor, int begin, int end) {
  int64_t n = 1;
  for (int i = begin; i < end; ++i) n *= tensor.shape[i];
  return n;
}

// What of (outer, channels, inner) a piece of a call is: for each of `num_blocks`, outer indices [begin, end) + block *
// step.
struct Piece {
  int64_t outer, channels, inner;
  int64_t num_blocks, step, begin, end;
  int64_t first_channel, last_channel;
};

Piece make_piece(const Tensor& x, int channel_axis, int cut, Range range) {
  Piece piece;
  piece.outer = product(x, 0, channel_axis);
  piece.channels = channel_axis < x.rank ? x.shape[channel_axis] : 1;
  piece.inner = channel_axis < x.rank ? product(x, channel_axis + 1, x.rank) : 1;
  piece.num_blocks = 1, piece.step = 0, piece.begin = 0, piece.end = piece.outer;
  piece.first_channel = 0, piece.last_channel = piece.channels;
  if (cut >= 0 && cut < channel_axis) {
    const int64_t below = product(x, cut + 1, channel_axis);
    piece.num_blocks = product(x, 0, cut);
    piece.step = x.shape[cut] * below;
    piece.begin = range.begin * below, piece.end = range.end * below;
  } else if (cut == channel_axis && cut < x.rank) {
    piece.first_channel = range.begin, piece.last_channel = range.end;
  }
  return piece;
}

template <class F>
void for_outer(const Piece& piece, const F& f) {
  for (int64_t block = 0; block < piece.num_blocks; ++block)
    for (int64_t o = piece.begin; o < piece.end; ++o) f(block * piece.step + o);
}

// Cuts along the axes before `end`.
void cut_before(const Call& call, Cuts& cuts, int end) {
  const Tensor& out = call.outputs[0];
  for (int axis = 0; axis < end; ++axis)
    if (out.shape[axis] > 1) cuts.add(axis, out.shape[axis]);
}

// ---- statistics of a row ----

// sum of f(x), always in the same order
template <class T, class F>
HWY_INLINE float row_sum(const T* x, int64_t n, const F& f) {
  V total[kWays] = {set(0), set(0), set(0), set(0)};
  int64_t i = 0;
  for (; i + kWays * kLanes <= n; i += kWays * kLanes)
    for (int k = 0; k < kWays; ++k) total[k] = hn::Add(total[k], f(load(x + i + k * kLanes)));
  for (int k = 0; i < n; ++k, i += kLanes) {
    if (n - i >= kLanes) {
      total[k] = hn::Add(total[k], f(load(x + i)));
    } else {
      const V part = f(load_part(x + i, n - i));
      total[k] = hn::Add(total[k], hn::IfThenElseZero(hn::FirstN(D(), static_cast<size_t>(n - i)), part));
    }
  }
  const V all = hn::Add(hn::Add(total[0], total[1]), hn::Add(total[2], total[3]));
  return hn::GetLane(hn::SumOfLanes(D(), all));
}

struct Moments {
  float mean;
  float scale;  // 1 / sqrt(variance + epsilon)
};

template <class T>
HWY_INLINE Moments row_moments(const T* x, int64_t n, float epsilon) {
  const float mean = row_sum(x, n, [](V v) HWY_ATTR { return v; }) / static_cast<float>(n);
  const V center = set(mean);
  const float squares = row_sum(x, n, [&](V v) HWY_ATTR {
    const V d = hn::Sub(v, center);
    return hn::Mul(d, d);
  });
  return {mean, 1 / std::sqrt(squares / static_cast<float>(n) + epsilon)};
}

// ---- layer_norm, rms_norm: rows of the last axes ----

struct RowAttributes {
  IntList axes;
  double epsilon;
};

int num_outer_axes(const Call& call) {
  return call.inputs[0].rank - static_cast<int>(call.attributes<RowAttributes>().axes.count);
}

template <bool kCenter>
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
  return nullptr;
}

void row_cuts(const Call& call, Cuts& cuts) { cut_before(call, cuts, num_outer_axes(call)); }

Range row_needs(const Call& call, int input, int axis, Range out) {
  return input == 0 ? out : Range{0, axis < call.inputs[input].rank ? call.inputs[input].shape[axis] : 1};
}

int64_t norm_cost(const Call& call) { return call.outputs[0].size() / 6; }

template <class T>
void affine_row(const T* x, T* y, int64_t n, Moments moments, const T* gamma, const T* beta) {
  const V mean = set(moments.mean), scale = set(moments.scale);
  const auto normal = [&](V v) HWY_ATTR { return hn::Mul(hn::Sub(v, mean), scale); };
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
    Moments moments{};
    if constexpr (kCenter) {
      moments = row_moments(from, n, epsilon);
    } else {
      const float squares = row_sum(from, n, [](V v) HWY_ATTR { return hn::Mul(v, v); });
      moments.scale = 1 / std::sqrt(squares / static_cast<float>(n) + epsilon);
    }
    affine_row(from, call.outputs[0].as<T>() + row * n, n, moments, gamma, beta);
  });
}

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

Range batch_needs(const Call& call, int input, int axis, Range out) {
  if (input == 0) return out;
  return axis == 0 && batch_axis(call) == 0 ? out : Range{0, axis == 0 ? call.inputs[input].shape[0] : 1};
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

// ---- instance_norm: each channel of each item over its spatial axes ----

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

Range instance_needs(const Call& call, int input, int axis, Range out) {
  if (input == 0) return out;
  return {0, axis == 0 ? call.inputs[input].shape[0] : 1};
}

// Up to kLanes channels of one item, (rows, channels) with one channel beside the other.
template <class T>
void normalise_columns(const T* x, T* y, int64_t rows, int64_t channels, int64_t columns, float epsilon, V gamma,
                       V beta) {
  const auto at = [&](int64_t i) HWY_ATTR {
    return columns == kLanes ? load(x + i * channels) : load_part(x + i * channels, columns);
  };
  // Partial sums of 128 rows keep the rounding errors of long sums small.
  const auto mean_of = [&](const auto& f) HWY_ATTR {
    V total = set(0);
    for (int64_t i = 0; i < rows;) {
      V part = set(0);
      for (const int64_t end = std::min(rows, i + 128); i < end; ++i) part = hn::Add(part, f(at(i)));
      total = hn::Add(total, part);
    }
    return hn::Div(total, set(static_cast<float>(rows)));
  };
  const V mean = mean_of([](V v) HWY_ATTR { return v; });
  const V variance = mean_of([&](V v) HWY_ATTR {
    const V d = hn::Sub(v, mean);
    return hn::Mul(d, d);
  });
  const V scale = hn::Div(set(1), hn::Sqrt(hn::Add(variance, set(epsilon))));
  for (int64_t i = 0; i < rows; ++i) {
    const V result = hn::MulAdd(hn::Mul(hn::Sub(at(i), mean), scale), gamma, beta);
    if (columns == kLanes)
      store(result, y + i * channels);
    else
      store_part(result, y + i * channels, columns);
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
    if (!last) {
      for (int64_t c = all_channels.begin; c < all_channels.end; ++c) {
        const int64_t at = (item * channels + c) * rows;
        const Moments moments = row_moments(from + at, rows, epsilon);
        const V mean = set(moments.mean), scale = set(moments.scale);
        const V gamma = set(parameter<T>(call, 1, c, 1)), beta = set(parameter<T>(call, 2, c, 0));
        map(from + at, to + at, rows,
            [&](V v) HWY_ATTR { return hn::MulAdd(hn::Mul(hn::Sub(v, mean), scale), gamma, beta); });
      }
      continue;
    }
    for (int64_t c = all_channels.begin; c < all_channels.end; c += kLanes) {
      const int64_t columns = std::min(kLanes, all_channels.end - c), at = item * rows * channels + c;
      const V gamma = given(call, 1) ? load_part(call.inputs[1].as<const T>() + c, columns) : set(1);
      const V beta = given(call, 2) ? load_part(call.inputs[2].as<const T>() + c, columns) : set(0);
      normalise_columns(from + at, to + at, rows, channels, columns, epsilon, gamma, beta);
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

// Values of channel c at [i, i + count) of the inner axis, or, with channels innermost, of channels [c, c + count).
template <class T>
void run_response(const Call& call, int cut, Range range, std::byte*, const std::byte*) {
  const auto& attributes = call.attributes<ResponseAttributes>();
  const Piece piece = make_piece(call.inputs[0], response_axis(call), cut, range);
  const int64_t before = std::min((attributes.size - 1) / 2, piece.channels);
  const int64_t after = std::min(attributes.size / 2, piece.channels);
  const V factor = set(static_cast<float>(attributes.alpha / static_cast<double>(attributes.size)));
  const V k = set(static_cast<float>(attributes.k)), power = set(static_cast<float>(-attributes.beta));
  const auto result = [&](V x, V squares)
                          HWY_ATTR { return hn::Mul(x, exp(hn::Mul(power, log(hn::MulAdd(squares, factor, k))))); };
  for_outer(piece, [&](int64_t o) HWY_ATTR {
    const T* x = call.inputs[0].as<const T>() + o * piece.channels * piece.inner;
    T* y = call.outputs[0].as<T>() + o * piece.channels * piece.inner;
    for (int64_t c = 0; c < piece.channels; ++c) {
      const int64_t low = std::max<int64_t>(c - before, 0), high = std::min(c + after, piece.channels - 1);
      for (int64_t i = 0; i < piece.inner; i += kLanes) {
        const int64_t count = std::min(kLanes, piece.inner - i);
        V squares = set(0);
        for (int64_t near = low; near <= high; ++near) {
          const T* at = x + near * piece.inner + i;
          const V v = count == kLanes ? load(at) : load_part(at, count);
          squares = hn::MulAdd(v, v, squares);
        }
        const T* at = x + c * piece.inner + i;
        store_part(result(count == kLanes ? load(at) : load_part(at, count), squares), y + c * piece.inner + i, count);
      }
    }
  });
}

constexpr const char* kLrn = "local_response_norm";
constexpr const char* kLrnLayout = "alpha:f beta:f k:f size:i axis:i";
constexpr const char* kBatchLayout = "epsilon:f axis:i";

#define HEXANE_NORMS(dtype, T)                                                                                        \
  {"layer_norm",                                                                                                      \
   dtype "," dtype "," dtype "->" dtype,                                                                              \
   "ieee",                                                                                                            \
   "axes:L epsilon:f",                                                                                                \
   sizeof(RowAttributes),                                                                                             \
   "dense",                                                                                                           \
   prepare_rows<true>,                                                                                                \
   row_cuts,                                                                                                          \
   row_needs,                                                                                                         \
   norm_cost,                                                                                                         \
   nullptr,                                                                                                           \
   nullptr,                                                                                                           \
   nullptr,                                                                                                           \
   run_rows<true, T>},                                                                                                \
      {"rms_norm",                                                                                                    \
       dtype "," dtype "->" dtype,                                                                                    \
       "ieee",                                                                                                        \
       "axes:L epsilon:f",                                                                                            \
       sizeof(RowAttributes),                                                                                         \
       "dense",                                                                                                       \
       prepare_rows<false>,                                                                                           \
       row_cuts,                                                                                                      \
       row_needs,                                                                                                     \
       norm_cost,                                                                                                     \
       nullptr,                                                                                                       \
       nullptr,                                                                                                       \
       nullptr,                                                                                                       \
       run_rows<false, T>},                                                                                           \
      {"batch_norm",                                                                                                  \
       dtype "," dtype                                                                                                \
             "..."                                                                                                    \
             "->" dtype,                                                                                              \
       "ieee",                                                                                                        \
       kBatchLayout,                                                                                                  \
       sizeof(BatchAttributes),                                                                                       \
       "dense",                                                                                                       \
       prepare_batch,                                                                                                 \
       batch_cuts,                                                                                                    \
       batch_needs,                                                                                                   \
       norm_cost,                                                                                                     \
       batch_scratch,                                                                                                 \
       nullptr,                                                                                                       \
       nullptr,                                                                                                       \
       run_batch<T>},                                                                                                 \
      {"instance_norm",                                                                                               \
       dtype "," dtype "," dtype "->" dtype,                                                                          \
       "ieee",                                                                                                        \
       "epsilon:f layout:s",                                                                                          \
       sizeof(InstanceAttributes),                                                                                    \
       "dense",                                                                                                       \
       prepare_instance,                                                                                              \
       instance_cuts,                                                                                                 \
       instance_needs,                                                                                                \
       norm_cost,                                                                                                     \
       nullptr,                                                                                                       \
       nullptr,                                                                                                       \
       nullptr,                                                                                                       \
       run_instance<T>},                                                                                              \
  {                                                                                                                   \
    kLrn, dtype "->" dtype, "ieee", kLrnLayout, sizeof(ResponseAttributes), "dense", prepare_response, response_cuts, \
        nullptr, norm_cost, nullptr, nullptr, nullptr, run_response<T>                                                \
  }

const Kernel kTable[] = {HEXANE_NORMS("fp32", float), HEXANE_NORMS("fp16", float16_t)};
#undef HEXANE_NORMS

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
