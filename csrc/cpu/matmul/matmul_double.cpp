// matmul of fp64: [.., M, K] x [.., K, N] -> [.., M, N], operands read in place, terms added in the order of K.
#include "cpu/matmul/matmul.h"
#include "cpu/tables.h"

namespace hexane::cpu {
namespace {

struct MatmulAttrs {
  int64_t transpose_x, transpose_y;
  Epilogue epilogue;
};

constexpr const char* kName = "matmul";

double number(const std::byte* from) { return *reinterpret_cast<const double*>(from); }

Prepared prepare(const Call& call) {
  auto state = std::make_shared<MatmulShape>();
  const auto& attrs = call.attributes<MatmulAttrs>();
  if (call.inputs.size() < 2 || call.outputs.size() != 1)
    fail(kName, "got ", call.inputs.size(), " inputs and ", call.outputs.size(), " outputs, need at least 2 and 1");
  if (attrs.epilogue.count) fail(kName, "epilogue: got ", attrs.epilogue.count, " slots, need 0 for fp64");
  set_shape(kName, *state, call, attrs.transpose_x, attrs.transpose_y, {});
  if (call.inputs.size() > 2 && call.inputs[2].present()) check_bias(kName, call.inputs[2], state->n);
  return state;
}

void cuts(const Call& call, Cuts& cuts) {
  const auto& s = call.state<MatmulShape>();
  matmul_cuts(call, s, s.k * s.n * 8, cuts);
}

Box needs(const Call& call, int input, const Box& out) {
  const auto& attrs = call.attributes<MatmulAttrs>();
  return matmul_needs(call, input, 3, out, attrs.transpose_x, attrs.transpose_y);
}

int64_t cost(const Call& call) { return call.outputs[0].size() * call.state<MatmulShape>().k / 2 + 100; }

void run(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  const auto& s = call.state<MatmulShape>();
  const Tensor &x = call.inputs[0], &y = call.inputs[1], &out = call.outputs[0];
  Range box[kMaxRank] = {};
  int64_t num_rows = 1;
  for (int i = 0; i < out.rank; ++i) {
    box[i] = i == axis ? range : Range{0, out.shape[i]};
    if (i < s.num_axes) num_rows *= box[i].end - box[i].begin;
  }
  const Range columns = box[out.rank - 1];
  const Tensor* bias = call.inputs.size() > 2 && call.inputs[2].present() ? &call.inputs[2] : nullptr;
  const int64_t bias_stride = bias && s.n > 1 ? bias->strides[bias->rank - 1] : 0;
  for (int64_t row = 0; row < num_rows; ++row) {
    const Offsets at = offsets(s, 0, box, 0, s.num_axes, row, {});
    double* to = reinterpret_cast<double*>(out.data + at.out);
    for (int64_t n = columns.begin; n < columns.end; ++n) to[n] = 0;
    for (int64_t k = 0; k < s.k; ++k) {
      const double factor = number(x.data + at.x + k * s.k_stride_x);
      const std::byte* from = y.data + at.y + k * s.k_stride_y;
      for (int64_t n = columns.begin; n < columns.end; ++n) to[n] += factor * number(from + n * s.n_stride_y);
    }
    if (bias)
      for (int64_t n = columns.begin; n < columns.end; ++n) to[n] += number(bias->data + n * bias_stride);
  }
}

constexpr Kernel kTable[] = {
    {
        .name = "matmul",
        .dtypes = "fp64,fp64,fp64...->fp64",
        .attrs = "transpose_x:i transpose_y:i epilogue:E",
        .attrs_bytes = sizeof(MatmulAttrs),
        .accepts = "rows",
        .prepare = prepare,
        .cuts = cuts,
        .needs = needs,
        .cost = cost,
        .run = run,
    },
};

}  // namespace

std::span<const Kernel> matmul_double_table() { return kTable; }

}  // namespace hexane::cpu
