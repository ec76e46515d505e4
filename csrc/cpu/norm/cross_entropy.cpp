// Cross-entropy and its gradient from logits. log_softmax_at returns the logarithm of softmax at each row's label. The
// gradient is softmax, minus 1 at the label, times a factor of the row. The two kernels need no further array of the
// size of the logits. The results equal softmax or log_softmax followed by separate ops, bit for bit.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/norm/cross_entropy.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cpu/norm/softmax-inl.h"

#include "cpu/move/indexing.h"
#include "cpu/operand.h"
#include "cpu/region.h"
#include "cpu/tables.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

constexpr const char* kAt = "log_softmax_at";
constexpr const char* kGradient = "cross_entropy_gradient";

// Returns the index of row i's label.
int64_t place(const char* name, const Call& call, int64_t i) {
  const Tensor& at = call.inputs[1];
  const int64_t n = call.inputs[0].shape[1], given = read_index(at.data + i * item_bytes(at), item_bytes(at) == 8);
  if (given < -n || given >= n) fail(name, "index: got ", given, ", need ", -n, " to ", n - 1);
  return given < 0 ? given + n : given;
}

void check_rows(const char* name, const Call& call, size_t operands) {
  if (call.inputs.size() != operands || call.outputs.size() != 1)
    fail(name, "operands: got ", call.inputs.size(), " inputs and ", call.outputs.size(), " outputs, need ", operands,
         " and 1");
  const Tensor& x = call.inputs[0];
  check_dense(name, "input", x);
  if (x.rank != 2 || x.shape[1] == 0)
    fail(name, "input shape: got ", shape_text(x), ", need rows and 1 or more columns");
  check_indices(name, call.inputs[1]);
  for (size_t i = 1; i < operands; ++i) {
    check_dense(name, "operand of the rows", call.inputs[i]);
    if (call.inputs[i].rank != 2 || call.inputs[i].shape[0] != x.shape[0] || call.inputs[i].shape[1] != 1)
      fail(name, "operand ", i, " shape: got ", shape_text(call.inputs[i]), ", need (", x.shape[0], ", 1)");
  }
  check_dense(name, "output", call.outputs[0]);
}

Prepared prepare_at(const Call& call) {
  check_rows(kAt, call, 2);
  check_same_shape(kAt, call.outputs[0], call.inputs[1]);
  return nullptr;
}

Prepared prepare_gradient(const Call& call) {
  check_rows(kGradient, call, 3);
  check_same_shape(kGradient, call.outputs[0], call.inputs[0]);
  return nullptr;
}

void cut_rows(const Call& call, Cuts& cuts) { cuts.add(0, call.inputs[0].shape[0]); }

Box row_needs(const Call& call, int input, const Box& out) { return all_along(call.inputs[input], 1, out); }

int64_t row_cost(const Call& call) { return 20 + call.inputs[0].size() * 3 / 10 + call.inputs[0].shape[0] * 8; }

Range rows_of(const Call& call, int cut, Range range) { return cut < 0 ? Range{0, call.inputs[0].shape[0]} : range; }

void run_at(const Call& call, int cut, Range range, std::byte*, const std::byte*) {
  const int64_t n = call.inputs[0].shape[1];
  range = rows_of(call, cut, range);
  for (int64_t i = range.begin; i < range.end; ++i) {
    const float* x = call.inputs[0].as<float>() + i * n;
    const float top = row_max(x, n);
    const V log_sum = log_of_sum(x, n, set(top));
    call.outputs[0].as<float>()[i] = x[place(kAt, call, i)] - top - hn::GetLane(log_sum);
  }
}

void run_gradient(const Call& call, int cut, Range range, std::byte*, const std::byte*) {
  const int64_t n = call.inputs[0].shape[1];
  range = rows_of(call, cut, range);
  for (int64_t i = range.begin; i < range.end; ++i) {
    const float* x = call.inputs[0].as<float>() + i * n;
    float* y = call.outputs[0].as<float>() + i * n;
    const float share = call.inputs[2].as<float>()[i];
    const V factor = set(1 / exponentials(x, y, n, row_max(x, n))), shares = set(share);
    map(y, y, n, [&](V e) HWY_ATTR { return hn::Mul(hn::Mul(e, factor), shares); });
    y[place(kGradient, call, i)] -= share;
  }
}

constexpr Kernel at_kernel(const char* dtypes) {
  return {.name = kAt,
          .dtypes = dtypes,
          .accepts = "dense",
          .prepare = prepare_at,
          .cuts = cut_rows,
          .needs = row_needs,
          .cost = row_cost,
          .run = run_at};
}

constexpr Kernel gradient_kernel(const char* dtypes) {
  return {.name = kGradient,
          .dtypes = dtypes,
          .accepts = "dense",
          .prepare = prepare_gradient,
          .cuts = cut_rows,
          .needs = row_needs,
          .cost = row_cost,
          .run = run_gradient};
}

const Kernel kTable[] = {at_kernel("fp32,int32->fp32"), at_kernel("fp32,int64->fp32"),
                         gradient_kernel("fp32,int32,fp32->fp32"), gradient_kernel("fp32,int64,fp32->fp32")};

std::span<const Kernel> cross_entropy_kernels() { return kTable; }

}  // namespace
}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::cpu {
HWY_EXPORT(cross_entropy_kernels);
std::span<const Kernel> cross_entropy_table() { return HWY_DYNAMIC_DISPATCH(cross_entropy_kernels)(); }
}  // namespace hexane::cpu
#endif
