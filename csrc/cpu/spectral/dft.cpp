// dft: fast Fourier transforms along an axis. Each lane of a vector transforms a line of its own, so that all lines
// have the same bits, whatever their number is. A line of a length with small prime factors takes Stockham's algorithm,
// which needs no permutation; other lengths become convolutions (Bluestein).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/spectral/dft.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include <algorithm>
#include <bit>

#include "core/error.h"
#include "cpu/move/strided_copy.h"
#include "cpu/operand.h"
#include "cpu/region.h"
#include "cpu/simd/vector-inl.h"
#include "cpu/spectral/dft.h"
#include "cpu/tables.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

constexpr const char* kName = "dft";
constexpr int64_t kMostLength = int64_t{1} << 17;
constexpr int64_t kRow = 2 * kLanes;  // floats of a complex element of all lanes: real parts, then imaginary parts
constexpr int64_t kFloat = sizeof(float);

struct Attributes {
  int64_t axis;
  int64_t length;
  int64_t inverse;
  int64_t onesided;
};

// ---- complex elements ----

struct Complex {
  V re, im;
};

HWY_INLINE Complex operator+(Complex a, Complex b) { return {hn::Add(a.re, b.re), hn::Add(a.im, b.im)}; }
HWY_INLINE Complex operator-(Complex a, Complex b) { return {hn::Sub(a.re, b.re), hn::Sub(a.im, b.im)}; }
// -i * x
HWY_INLINE Complex turned(Complex x) { return {x.im, hn::Neg(x.re)}; }
HWY_INLINE Complex conjugate(Complex x) { return {x.re, hn::Neg(x.im)}; }
HWY_INLINE Complex swapped(Complex x) { return {x.im, x.re}; }
// Multiplies by a number of a table: its real and its imaginary part.
HWY_INLINE Complex times(Complex x, const float* w) {
  const V re = set(w[0]), im = set(w[1]);
  return {hn::NegMulAdd(x.im, im, hn::Mul(x.re, re)), hn::MulAdd(x.im, re, hn::Mul(x.re, im))};
}
HWY_INLINE Complex load_row(const float* from, int64_t i) {
  return {hn::Load(D(), from + i * kRow), hn::Load(D(), from + i * kRow + kLanes)};
}
HWY_INLINE void store_row(Complex x, float* to, int64_t i) {
  hn::Store(x.re, D(), to + i * kRow);
  hn::Store(x.im, D(), to + i * kRow + kLanes);
}

// ---- stages ----

void stage_of_2(const DftStage& st, const float* w, const float* x, float* y) {
  for (int64_t j = 0; j < st.m; ++j, w += 2)
    for (int64_t k = 0; k < st.s; ++k) {
      const int64_t at = k + st.s * j, to = k + 2 * st.s * j;
      const Complex a = load_row(x, at), b = load_row(x, at + st.s * st.m);
      store_row(a + b, y, to);
      store_row(times(a - b, w), y, to + st.s);
    }
}

void stage_of_4(const DftStage& st, const float* w, const float* x, float* y) {
  const int64_t step = st.s * st.m;
  for (int64_t j = 0; j < st.m; ++j, w += 6)
    for (int64_t k = 0; k < st.s; ++k) {
      const int64_t at = k + st.s * j, to = k + 4 * st.s * j;
      const Complex a = load_row(x, at), b = load_row(x, at + step), c = load_row(x, at + 2 * step),
                    d = load_row(x, at + 3 * step);
      const Complex sum = a + c, difference = a - c, others = b + d, turn = turned(b - d);
      store_row(sum + others, y, to);
      store_row(times(difference + turn, w), y, to + st.s);
      store_row(times(sum - others, w + 2), y, to + 2 * st.s);
      store_row(times(difference - turn, w + 4), y, to + 3 * st.s);
    }
}

// An odd radix: pairs of elements r and radix - r give the results t and radix - t.
void stage_of_odd(const DftStage& st, const float* w, const float* roots, const float* x, float* y) {
  const int64_t step = st.s * st.m, p = st.radix, half = p / 2;
  Complex sums[kMostRadix / 2 + 1], differences[kMostRadix / 2 + 1];
  for (int64_t j = 0; j < st.m; ++j, w += 2 * (p - 1))
    for (int64_t k = 0; k < st.s; ++k) {
      const int64_t at = k + st.s * j, to = k + p * st.s * j;
      const Complex first = load_row(x, at);
      Complex total = first;
      for (int64_t r = 1; r <= half; ++r) {
        const Complex a = load_row(x, at + r * step), b = load_row(x, at + (p - r) * step);
        sums[r] = a + b, differences[r] = a - b;
        total = total + sums[r];
      }
      store_row(total, y, to);
      for (int64_t t = 1; t <= half; ++t) {
        Complex even = first, odd = {hn::Zero(D()), hn::Zero(D())};
        for (int64_t r = 1, turns = t; r <= half; ++r, turns = (turns + t) % p) {
          const V cosine = set(roots[2 * turns]), sine = set(roots[2 * turns + 1]);
          even = {hn::MulAdd(sums[r].re, cosine, even.re), hn::MulAdd(sums[r].im, cosine, even.im)};
          odd = {hn::MulAdd(differences[r].re, sine, odd.re), hn::MulAdd(differences[r].im, sine, odd.im)};
        }
        const Complex turn = turned(odd);
        store_row(times(even + turn, w + 2 * (t - 1)), y, to + t * st.s);
        store_row(times(even - turn, w + 2 * (p - t - 1)), y, to + (p - t) * st.s);
      }
    }
}

// Transforms the rows of x. Returns the buffer with the result: x or y.
float* transform(const DftPlan& plan, float* x, float* y) {
  for (const DftStage& st : plan.stages) {
    const float* w = plan.numbers.data() + st.factors;
    if (st.radix == 4)
      stage_of_4(st, w, x, y);
    else if (st.radix == 2)
      stage_of_2(st, w, x, y);
    else
      stage_of_odd(st, w, plan.numbers.data() + st.roots, x, y);
    std::swap(x, y);
  }
  return x;
}

// Like transform(), as a convolution with the chirp. size: elements of the transform.
float* transform_by_chirp(const Dft& dft, int64_t size, float* x, float* y) {
  for (int64_t n = 0; n < size; ++n) store_row(times(load_row(x, n), &dft.chirp[static_cast<size_t>(2 * n)]), x, n);
  std::fill(x + size * kRow, x + dft.plan.size * kRow, 0.0f);
  float* spectrum = transform(dft.plan, x, y);
  // The second transform is an inverse one: of swapped elements, with swapped results.
  for (int64_t n = 0; n < dft.plan.size; ++n)
    store_row(swapped(times(load_row(spectrum, n), &dft.filter[static_cast<size_t>(2 * n)])), spectrum, n);
  float* result = transform(dft.plan, spectrum, spectrum == x ? y : x);
  for (int64_t n = 0; n < size; ++n)
    store_row(times(swapped(load_row(result, n)), &dft.chirp[static_cast<size_t>(2 * n)]), result, n);
  return result;
}

// ---- lines ----

// Computes the transform z of a real signal from the transform of its even elements + i * its odd elements.
void split(const Dft& dft, const float* z, float* y) {
  const int64_t size = dft.length / 2;
  const V half = set(0.5f);
  for (int64_t k = 0; k <= size; ++k) {
    const Complex a = load_row(z, k % size), b = conjugate(load_row(z, (size - k) % size));
    const Complex even = a + b, odd = turned(times(a - b, &dft.split[static_cast<size_t>(2 * k)]));
    const Complex sum = even + odd;
    const Complex x = {hn::Mul(sum.re, half), hn::Mul(sum.im, half)};
    store_row(x, y, k);
    if (dft.outputs == dft.length && 0 < k && k < size) store_row(conjugate(x), y, dft.length - k);
  }
}

void copy(const CopyAxis* axes, int count, std::byte* out, const std::byte* in) {
  run_copy(plan_copy(axes, count, kFloat), out, in);
}

// Loads `lines` lines into the rows of x, `pitch` bytes apart; of an inverse transform with swapped parts.
void load_lines(const Dft& dft, const Tensor& in, int axis, const std::byte* from, int64_t pitch, int64_t lines,
                float* x) {
  const int last = in.rank - 1;
  const int64_t step = in.strides[axis], part = in.strides[last];
  const int64_t rows = dft.chirp.empty() ? dft.plan.size : dft.halves ? dft.length / 2 : dft.length;
  std::fill(x, x + rows * kRow, 0.0f);
  auto* to = reinterpret_cast<std::byte*>(x);
  const int64_t pair = kRow * kFloat;
  if (dft.halves) {
    const CopyAxis axes[] = {{dft.read, step, pair / 2}, {lines, pitch, kFloat}};
    return copy(axes, 2, to, from);
  }
  if (dft.inverse) {  // swapped: the real part is the second one
    const CopyAxis axes[] = {{dft.read, step, pair}, {lines, pitch, kFloat}};
    copy(axes, 2, to + pair / 2, from);
    if (dft.parts == 2) copy(axes, 2, to, from + part);
    if (dft.results == 1)  // the missing half is the conjugate of the given half
      for (int64_t k = 1; k < dft.read; ++k)
        if (2 * k < dft.length) {
          const Complex z = load_row(x, k);
          store_row({hn::Neg(z.re), z.im}, x, dft.length - k);
        }
    return;
  }
  const CopyAxis axes[] = {{dft.read, step, pair}, {lines, pitch, kFloat}};
  copy(axes, 2, to, from);
  if (dft.parts == 2) copy(axes, 2, to + pair / 2, from + part);
}

void store_lines(const Dft& dft, const Tensor& out, int axis, const float* y, std::byte* to, int64_t pitch,
                 int64_t lines) {
  const int64_t step = out.strides[axis], pair = kRow * kFloat;
  const auto* from = reinterpret_cast<const std::byte*>(y);
  if (dft.results == 1) {
    const CopyAxis axes[] = {{dft.outputs, pair, step}, {lines, kFloat, pitch}};
    return copy(axes, 2, to, from + pair / 2);  // swapped
  }
  const int64_t first = dft.inverse ? pair / 2 : 0;
  const CopyAxis axes[] = {{dft.outputs, pair, step},
                           {2, dft.inverse ? -pair / 2 : pair / 2, out.strides[out.rank - 1]},
                           {lines, kFloat, pitch}};
  copy(axes, 3, to, from + first);
}

// Transforms up to kLanes lines.
void transform_lines(const Dft& dft, const Tensor& in, const Tensor& out, int axis, const std::byte* from,
                     int64_t in_pitch, std::byte* to, int64_t out_pitch, int64_t lines, float* x, float* y) {
  load_lines(dft, in, axis, from, in_pitch, lines, x);
  const int64_t size = dft.halves ? dft.length / 2 : dft.length;
  const float* result = dft.chirp.empty() ? transform(dft.plan, x, y) : transform_by_chirp(dft, size, x, y);
  float* other = result == x ? y : x;
  if (dft.halves) {
    split(dft, result, other);
    result = other;
  } else if (dft.inverse) {
    const V scale = set(1.0f / static_cast<float>(dft.length));
    for (int64_t i = 0; i < size; ++i) {
      const Complex z = load_row(result, i);
      store_row({hn::Mul(z.re, scale), hn::Mul(z.im, scale)}, other, i);
    }
    result = other;
  }
  store_lines(dft, out, axis, result, to, out_pitch, lines);
}

// ---- the kernel ----

// The axis whose lines share vectors: the longest one besides the transformed axis and the last axis; -1 for none.
int lane_axis(const Call& call, int axis) {
  const Tensor& out = call.outputs[0];
  int best = -1;
  for (int i = 0; i < out.rank - 1; ++i)
    if (i != axis && (best < 0 || out.shape[i] > out.shape[best])) best = i;
  return best;
}

int axis_of(const Call& call) {
  const int64_t axis = call.attributes<Attributes>().axis;
  return static_cast<int>(axis < 0 ? axis + call.inputs[0].rank : axis);
}

Prepared prepare(const Call& call) {
  if (call.inputs.size() != 1 || call.outputs.size() != 1)
    fail(kName, "operands: got ", call.inputs.size(), " inputs and ", call.outputs.size(), " outputs, need 1 and 1");
  const Tensor &x = call.inputs[0], &out = call.outputs[0];
  check_operand(kName, "input", x);
  check_written(kName, "output", out);
  const auto& attributes = call.attributes<Attributes>();
  if (x.rank < 2 || out.rank != x.rank)
    fail(kName, "ranks: got ", x.rank, " and ", out.rank, ", need one of 2 or more");
  const int last = x.rank - 1, axis = check_axis(kName, attributes.axis, x.rank);
  if (axis == last) fail(kName, "axis: got ", axis, ", need one before the last");
  const int64_t length = attributes.length, parts = x.shape[last];
  if (length < 1 || length > kMostLength) fail(kName, "length: got ", length, ", need 1..", kMostLength);
  for (const int64_t flag : {attributes.inverse, attributes.onesided})
    if (flag != 0 && flag != 1) fail(kName, "flag: got ", flag, ", need 0 or 1");
  const bool inverse = attributes.inverse, onesided = attributes.onesided;
  if (parts != 1 && parts != 2) fail(kName, "last axis: got ", parts, ", need 1 or 2");
  if (onesided && parts != (inverse ? 2 : 1)) fail(kName, "last axis: got ", parts, ", need the other one");
  const int64_t half = length / 2 + 1, results = onesided && inverse ? 1 : 2;
  const int64_t outputs = onesided && !inverse ? half : length;
  for (int i = 0; i < x.rank; ++i) {
    const int64_t need = i == axis ? outputs : i == last ? results : x.shape[i];
    if (out.shape[i] != need) fail(kName, "output: got ", shape_text(out), ", need ", need, " along axis ", i);
  }
  const int64_t read = std::min(x.shape[axis], onesided && inverse ? half : length);
  return std::make_shared<const Dft>(make_dft(length, read, outputs, parts, results, inverse));
}

void cuts(const Call& call, Cuts& cuts) {
  const Tensor& out = call.outputs[0];
  const int axis = axis_of(call), lanes = lane_axis(call, axis);
  if (lanes < 0) return;
  cuts.add(lanes, out.shape[lanes]);
  for (int i = 0; i < out.rank - 1; ++i)
    if (i != axis && i != lanes && out.shape[i] > 1) cuts.add(i, out.shape[i]);
}

Box needs(const Call& call, int, const Box& out) {
  const Tensor& x = call.inputs[0];
  Box box = out;
  for (const int axis : {axis_of(call), x.rank - 1}) box[axis] = {0, x.shape[axis]};
  return box;
}

int64_t cost(const Call& call) {
  const auto& dft = call.state<Dft>();
  const Tensor& out = call.outputs[0];
  const int64_t lines = out.size() / std::max<int64_t>(1, dft.outputs * dft.results);
  const int64_t stages = std::bit_width(static_cast<uint64_t>(dft.plan.size)) * (dft.chirp.empty() ? 1 : 2);
  return (lines + kLanes - 1) / kLanes * dft.rows * (8 + stages);
}

int64_t scratch(const Call& call) { return 2 * call.state<Dft>().rows * kRow * kFloat; }

void run(const Call& call, int cut, Range range, std::byte* scratch, const std::byte*) {
  const auto& dft = call.state<Dft>();
  const Tensor &in = call.inputs[0], &out = call.outputs[0];
  const int axis = axis_of(call), lanes = lane_axis(call, axis);
  auto* x = reinterpret_cast<float*>(scratch);
  float* y = x + dft.rows * kRow;
  Range ranges[8] = {};
  int64_t others = 1;  // the number of lines along the other axes
  for (int i = 0; i < out.rank - 1; ++i) {
    ranges[i] = i == axis ? Range{0, 1} : i == cut ? range : Range{0, out.shape[i]};
    if (i != lanes) others *= ranges[i].end - ranges[i].begin;
  }
  const Range along = lanes < 0 ? Range{0, 1} : ranges[lanes];
  for (int64_t other = 0; other < others; ++other) {
    int64_t from = 0, to = 0, rest = other;
    for (int i = out.rank - 2; i >= 0; --i) {
      if (i == axis || i == lanes) continue;
      const int64_t extent = ranges[i].end - ranges[i].begin, index = ranges[i].begin + rest % extent;
      rest /= extent;
      from += index * in.strides[i], to += index * out.strides[i];
    }
    const int64_t in_pitch = lanes < 0 ? 0 : in.strides[lanes], out_pitch = lanes < 0 ? kFloat : out.strides[lanes];
    for (int64_t line = along.begin; line < along.end; line += kLanes)
      transform_lines(dft, in, out, axis, in.data + from + line * in_pitch, in_pitch, out.data + to + line * out_pitch,
                      out_pitch, std::min(kLanes, along.end - line), x, y);
  }
}

const Kernel kTable[] = {{
    .name = kName,
    .dtypes = "fp32->fp32",
    .attrs = "axis:i length:i inverse:i onesided:i",
    .attrs_bytes = sizeof(Attributes),
    .accepts = "strided",
    .prepare = prepare,
    .cuts = cuts,
    .needs = needs,
    .cost = cost,
    .scratch = scratch,
    .run = run,
}};

std::span<const Kernel> dft_kernels() { return kTable; }

}  // namespace
}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::cpu {
HWY_EXPORT(dft_kernels);
std::span<const Kernel> dft_table() { return HWY_DYNAMIC_DISPATCH(dft_kernels)(); }
}  // namespace hexane::cpu
#endif
