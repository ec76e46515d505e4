// Reductions of fp64: element by element, in order.
#include <cmath>
#include <limits>

#include "cpu/reduce/reduce.h"
#include "cpu/tables.h"

namespace hexane::cpu {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// ---- functors: a total that takes one element after another ----

#define HEXANE_TOTAL(op, first, next, result)                              \
  struct op##_op {                                                         \
    static constexpr const char* kName = #op;                              \
    double total = first;                                                  \
    void step(double x) { total = next; }                                  \
    double finish([[maybe_unused]] int64_t count) const { return result; } \
  };
HEXANE_TOTAL(reduce_sum, 0, total + x, total)
HEXANE_TOTAL(reduce_mean, 0, total + x, total / static_cast<double>(count))
HEXANE_TOTAL(reduce_prod, 1, total* x, total)
HEXANE_TOTAL(reduce_max, -kInfinity, x > total || x != x ? x : total, total)
HEXANE_TOTAL(reduce_min, kInfinity, x < total || x != x ? x : total, total)
HEXANE_TOTAL(reduce_sum_square, 0, total + x * x, total)
HEXANE_TOTAL(reduce_l1_norm, 0, total + std::abs(x), total)
HEXANE_TOTAL(reduce_l2_norm, 0, total + x * x, std::sqrt(total))
HEXANE_TOTAL(reduce_log_sum, 0, total + x, std::log(total))
#undef HEXANE_TOTAL

// Keeps top, the largest finite element so far, and the sum of e^(x - top).
struct reduce_log_sum_exp_op {
  static constexpr const char* kName = "reduce_log_sum_exp";
  double top = -kInfinity, sum = 0;
  void step(double x) {
    if (!std::isfinite(x)) {
      sum += x == -kInfinity ? 0 : x;
    } else if (x <= top) {
      sum += std::exp(x - top);
    } else {
      if (std::isfinite(sum)) sum = sum * std::exp(top - x) + 1;
      top = x;
    }
  }
  double finish(int64_t) const { return std::isfinite(top) ? std::log(sum) + top : std::log(sum); }
};

template <class Op>
Prepared prepare(const Call& call) {
  const auto& attributes = call.attributes<ReduceAttributes>();
  check_reduce(Op::kName, call, attributes.axes, attributes.keep_dims);
  return nullptr;
}

template <class Op>
void run(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  const auto& attributes = call.attributes<ReduceAttributes>();
  const ReduceLoop loop = make_reduce_loop(call, attributes.axes, attributes.keep_dims, axis, range);
  const std::byte* in = call.inputs[0].data + loop.in;
  std::byte* out = call.outputs[0].data + loop.out;
  for_each(loop.kept, loop.num_kept, 0, 0, [&](int64_t from, int64_t to) {
    Op op;
    for_each(loop.reduced, loop.num_reduced, from, 0,
             [&](int64_t at, int64_t) { op.step(*reinterpret_cast<const double*>(in + at)); });
    *reinterpret_cast<double*>(out + to) = op.finish(loop.count);
  });
}

template <class Op, int kPicoseconds>
constexpr Kernel kernel() {
  return {
      .name = Op::kName,
      .dtypes = "fp64->fp64",
      .attrs = "axes:L keep_dims:i",
      .attrs_bytes = sizeof(ReduceAttributes),
      .accepts = "strided",
      .prepare = prepare<Op>,
      .cuts = cut_every_axis,
      .needs = reduce_needs,
      .cost = reduce_cost<kPicoseconds>,
      .run = run<Op>,
  };
}

constexpr Kernel kTable[] = {
    kernel<reduce_sum_op, 1500>(),         kernel<reduce_mean_op, 1500>(),    kernel<reduce_prod_op, 1500>(),
    kernel<reduce_max_op, 1500>(),         kernel<reduce_min_op, 1500>(),     kernel<reduce_sum_square_op, 1500>(),
    kernel<reduce_l1_norm_op, 1500>(),     kernel<reduce_l2_norm_op, 1500>(), kernel<reduce_log_sum_op, 1500>(),
    kernel<reduce_log_sum_exp_op, 8000>(),
};

}  // namespace

std::span<const Kernel> reduce_double_table() { return kTable; }

}  // namespace hexane::cpu
