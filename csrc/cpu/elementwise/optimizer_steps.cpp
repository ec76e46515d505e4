// Optimiser steps: update a parameter and its moments in one pass. accumulate_step sums gradients over several batches.
// ops/records/optimizers.py explains the numbers of `rates`. A result may lie over its operand; a skipped step then
// writes nothing.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/elementwise/optimizer_steps.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cpu/simd/vector-inl.h"

#include <algorithm>

#include "cpu/elementwise/elementwise.h"
#include "cpu/operand.h"
#include "cpu/region.h"
#include "cpu/tables.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kRates = 5;

struct Rates {
  V lr, first, second, scale;
};

// Each optimizer's struct has the attribute struct, its layout, the number of moments, and step(). step() gets w, the
// gradient and the moments, and updates w and the moments.

struct Adam {
  static constexpr const char* kName = "adam_step";
  static constexpr const char* kLayout = "beta1:f beta2:f epsilon:f decay:f decoupled:i";
  static constexpr int kMoments = 2;
  struct Attrs {
    double beta1, beta2, epsilon, decay;
    int64_t decoupled;
  };
  V beta2, rest1, rest2, epsilon, decay;
  bool in_gradient, in_param;

  explicit Adam(const Attrs& a)
      : beta2(set(static_cast<float>(a.beta2))),
        rest1(set(static_cast<float>(1 - a.beta1))),
        rest2(set(static_cast<float>(1 - a.beta2))),
        epsilon(set(static_cast<float>(a.epsilon))),
        decay(set(static_cast<float>(a.decay))),
        in_gradient(a.decay != 0 && !a.decoupled),
        in_param(a.decay != 0 && a.decoupled) {}

  HWY_INLINE void step(const Rates& r, V& w, V g, V& m, V& v) const {
    if (in_gradient) g = hn::MulAdd(w, decay, g);
    m = hn::MulAdd(hn::Sub(g, m), rest1, m);
    v = hn::MulAdd(v, beta2, hn::Mul(hn::Mul(g, g), rest2));
    if (in_param) w = hn::NegMulAdd(w, hn::Mul(r.lr, decay), w);
    const V deviation = hn::MulAdd(hn::Sqrt(v), r.second, epsilon);
    w = hn::Sub(w, hn::Div(hn::Mul(m, hn::Mul(r.lr, r.first)), deviation));
  }
};

struct Lion {
  static constexpr const char* kName = "lion_step";
  static constexpr const char* kLayout = "beta1:f beta2:f decay:f";
  static constexpr int kMoments = 1;
  struct Attrs {
    double beta1, beta2, decay;
  };
  V beta1, beta2, rest1, rest2, decay;
  bool in_param;

  explicit Lion(const Attrs& a)
      : beta1(set(static_cast<float>(a.beta1))),
        beta2(set(static_cast<float>(a.beta2))),
        rest1(set(static_cast<float>(1 - a.beta1))),
        rest2(set(static_cast<float>(1 - a.beta2))),
        decay(set(static_cast<float>(a.decay))),
        in_param(a.decay != 0) {}

  HWY_INLINE void step(const Rates& r, V& w, V g, V& m, V&) const {
    const V way = hn::Add(hn::Mul(m, beta1), hn::Mul(g, rest1));
    const V sign = hn::IfThenElse(hn::Eq(way, hn::Zero(D())), way, hn::CopySign(set(1), way));
    if (in_param) w = hn::NegMulAdd(w, hn::Mul(r.lr, decay), w);
    w = hn::NegMulAdd(sign, r.lr, w);
    m = hn::Add(hn::Mul(m, beta2), hn::Mul(g, rest2));
  }
};

struct Momentum {
  static constexpr const char* kName = "momentum_step";
  static constexpr const char* kLayout = "momentum:f nesterov:i decay:f";
  static constexpr int kMoments = 1;
  struct Attrs {
    double momentum;
    int64_t nesterov;
    double decay;
  };
  V momentum, decay;
  bool nesterov, decays;

  explicit Momentum(const Attrs& a)
      : momentum(set(static_cast<float>(a.momentum))),
        decay(set(static_cast<float>(a.decay))),
        nesterov(a.nesterov != 0),
        decays(a.decay != 0) {}

  HWY_INLINE void step(const Rates& r, V& w, V g, V& m, V&) const {
    if (decays) g = hn::MulAdd(w, decay, g);
    m = hn::MulAdd(m, momentum, g);
    w = hn::NegMulAdd(nesterov ? hn::MulAdd(m, momentum, g) : m, r.lr, w);
  }
};

struct Sgd {
  static constexpr const char* kName = "sgd_step";
  static constexpr const char* kLayout = "decay:f";
  static constexpr int kMoments = 0;
  struct Attrs {
    double decay;
  };
  V decay;
  bool decays;

  explicit Sgd(const Attrs& a) : decay(set(static_cast<float>(a.decay))), decays(a.decay != 0) {}

  HWY_INLINE void step(const Rates& r, V& w, V g, V&, V&) const {
    if (decays) g = hn::MulAdd(w, decay, g);
    w = hn::NegMulAdd(g, r.lr, w);
  }
};

// Inputs: the parameter w, the gradient g, the moments and rates. Outputs: w and the moments.
template <class Op>
Prepared prepare(const Call& call) {
  constexpr int kInputs = 3 + Op::kMoments;
  for (int i = 0; i < kInputs; ++i) check_dense(Op::kName, i + 1 < kInputs ? "input" : "rates", call.inputs[i]);
  for (int i = 1; i + 1 < kInputs; ++i) check_same_shape(Op::kName, call.inputs[i], call.inputs[0]);
  for (const Tensor& out : call.outputs) {
    check_dense(Op::kName, "output", out);
    check_same_shape(Op::kName, out, call.inputs[0]);
  }
  const Tensor& rates = call.inputs[kInputs - 1];
  if (rates.rank != 1 || rates.shape[0] != kRates)
    fail(Op::kName, "rates: got the shape ", shape_text(rates), ", need (", kRates, ",)");
  return nullptr;
}

void cut_outermost(const Call& call, Cuts& cuts) {
  const Tensor& out = call.outputs[0];
  for (int axis = 0; axis < out.rank; ++axis)
    if (out.shape[axis] > 1) return cuts.add(axis, out.shape[axis]);
}

template <class Op>
Box needs(const Call& call, int input, const Box& out) {
  return input == 2 + Op::kMoments ? whole(call.inputs[input]) : out;
}

template <class Op>
HWY_INLINE void step_part(const Op& op, const Rates& rates, const float* const* from, float* const* to, int64_t i,
                          int64_t n) {
  const auto read = [&](int which) { return n == kLanes ? load(from[which] + i) : load_part(from[which] + i, n); };
  const auto write = [&](V x, int which) { n == kLanes ? store(x, to[which] + i) : store_part(x, to[which] + i, n); };
  V w = read(0), m = hn::Zero(D()), v = hn::Zero(D());
  if constexpr (Op::kMoments > 0) m = read(2);
  if constexpr (Op::kMoments > 1) v = read(3);
  op.step(rates, w, hn::Mul(read(1), rates.scale), m, v);
  write(w, 0);
  if constexpr (Op::kMoments > 0) write(m, 1);
  if constexpr (Op::kMoments > 1) write(v, 2);
}

template <class Op>
void run(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  const Tensor& out = call.outputs[0];
  const int64_t size = out.size(), row = axis < 0 || size == 0 ? 1 : size / out.shape[axis];
  const int64_t begin = axis < 0 ? 0 : range.begin * row, end = size == 0 ? 0 : axis < 0 ? size : range.end * row;
  const float* from[5] = {};  // w, g, the moments and rates
  float* to[3] = {};
  for (size_t k = 0; k < call.inputs.size(); ++k) from[k] = call.inputs[k].as<float>();
  for (size_t k = 0; k < call.outputs.size(); ++k) to[k] = call.outputs[k].as<float>();
  const float* numbers = from[2 + Op::kMoments];
  if (!(numbers[4] > 0.5f)) {
    for (int k = 0; k < 1 + Op::kMoments; ++k) {
      const float* old = from[k == 0 ? 0 : 1 + k];
      if (old != to[k]) std::copy(old + begin, old + end, to[k] + begin);
    }
    return;
  }
  const Op op(call.attributes<typename Op::Attrs>());
  const Rates rates = {set(numbers[0]), set(numbers[1]), set(numbers[2]), set(numbers[3])};
  for (int64_t i = begin; i < end; i += kLanes) step_part(op, rates, from, to, i, std::min(kLanes, end - i));
}

// True unless the step is skipped and its results already lie over its operands.
template <class Op>
bool step_changes(const Call& call) {
  for (int k = 0; k < 1 + Op::kMoments; ++k)
    if (call.outputs[k].data != call.inputs[k == 0 ? 0 : 1 + k].data) return true;
  const Tensor& rates = call.inputs[2 + Op::kMoments];
  return rates.as<float>()[4] > 0.5f;
}

template <class Op>
constexpr Kernel step_kernel() {
  constexpr const char* kDtypes[] = {"fp32,fp32,fp32->fp32", "fp32,fp32,fp32,fp32->fp32,fp32",
                                     "fp32,fp32,fp32,fp32,fp32->fp32,fp32,fp32"};
  return {
      .name = Op::kName,
      .dtypes = kDtypes[Op::kMoments],
      .attrs = Op::kLayout,
      .attrs_bytes = sizeof(typename Op::Attrs),
      .accepts = "dense",
      .prepare = prepare<Op>,
      .cuts = cut_outermost,
      .needs = needs<Op>,
      .cost = elementwise_cost<400>,
      .run = run<Op>,
      .changes = step_changes<Op>,
  };
}

// ---- the sum of gradients ----

constexpr const char* kSum = "accumulate_step";

// Inputs s, g and first: the result is g if `first` is true, else s + g.
Prepared prepare_sum(const Call& call) {
  for (int i = 0; i < 2; ++i) check_dense(kSum, "input", call.inputs[i]);
  check_same_shape(kSum, call.inputs[1], call.inputs[0]);
  check_dense(kSum, "output", call.outputs[0]);
  check_same_shape(kSum, call.outputs[0], call.inputs[0]);
  const Tensor& first = call.inputs[2];
  check_dense(kSum, "first", first);
  if (first.rank != 1 || first.shape[0] != 1) fail(kSum, "first: got the shape ", shape_text(first), ", need (1,)");
  return nullptr;
}

Box sum_needs(const Call& call, int input, const Box& out) { return input == 2 ? whole(call.inputs[2]) : out; }

void run_sum(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  const Tensor& out = call.outputs[0];
  const int64_t size = out.size(), row = axis < 0 || size == 0 ? 1 : size / out.shape[axis];
  const int64_t begin = axis < 0 ? 0 : range.begin * row, end = size == 0 ? 0 : axis < 0 ? size : range.end * row;
  const float *s = call.inputs[0].as<float>(), *g = call.inputs[1].as<float>();
  float* y = out.as<float>();
  if (*call.inputs[2].as<uint8_t>())
    std::copy(g + begin, g + end, y + begin);
  else
    map(s + begin, g + begin, y + begin, end - begin, [](V a, V b) HWY_ATTR { return hn::Add(a, b); });
}

constexpr Kernel sum_kernel() {
  return {
      .name = kSum,
      .dtypes = "fp32,fp32,bool->fp32",
      .accepts = "dense",
      .prepare = prepare_sum,
      .cuts = cut_outermost,
      .needs = sum_needs,
      .cost = elementwise_cost<400>,
      .run = run_sum,
  };
}

const Kernel kTable[] = {step_kernel<Adam>(), step_kernel<Lion>(), step_kernel<Momentum>(), step_kernel<Sgd>(),
                         sum_kernel()};

std::span<const Kernel> optimizer_kernels() { return kTable; }

}  // namespace
}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::cpu {
HWY_EXPORT(optimizer_kernels);
std::span<const Kernel> optimizer_table() { return HWY_DYNAMIC_DISPATCH(optimizer_kernels)(); }
}  // namespace hexane::cpu
#endif
