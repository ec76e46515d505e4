// decode: turns a weight stored as for encoded_matmul into fp32 or fp16, for kernels that cannot decode it themselves.
#include <algorithm>
#include <cstring>

#include "core/fp16.h"
#include "cpu/matmul/encoded_rows.h"
#include "cpu/operand.h"
#include "cpu/tables.h"

namespace hexane::cpu {
namespace {

struct DecodeAttrs {
  int64_t bits, palette, axis;
};

constexpr const char* kName = "decode";
constexpr int64_t kPart = 1024;  // numbers that are decoded at a time, an even number
constexpr int64_t kRunsAtOnce = 16;

// Row i of the weight is index i of one axis of the output. In the output, row i is num_runs runs of `run` numbers.
struct DecodeState {
  int64_t rows, run, num_runs;
  EncodedRows codes;
};

Prepared prepare(const Call& call) {
  if (call.inputs.size() != 2 || call.outputs.size() != 1)
    fail(kName, "got ", call.inputs.size(), " inputs and ", call.outputs.size(), " outputs, need 2 and 1");
  const auto& attrs = call.attributes<DecodeAttrs>();
  const Tensor &weight = call.inputs[0], &numbers = call.inputs[1], &out = call.outputs[0];
  if (attrs.axis < 0 || attrs.axis >= out.rank)
    fail(kName, "axis: got ", attrs.axis, ", need one of the ", out.rank, " of the output");
  check_dense(kName, "out", out);
  check_dense(kName, "weight", weight);
  check_dense(kName, "numbers", numbers);
  auto state = std::make_shared<DecodeState>();
  DecodeState& s = *state;
  s.rows = out.shape[attrs.axis];
  s.run = s.num_runs = 1;
  for (int i = 0; i < out.rank; ++i) (i < attrs.axis ? s.num_runs : s.run) *= i == attrs.axis ? 1 : out.shape[i];
  const int64_t shape[] = {1, s.run * s.num_runs}, strides[] = {0, 4};
  const Tensor row = {nullptr, DType::kFp32, 2, false, 0, shape, strides};
  const EncodedPanels e = encoded_panels(kName, row, weight, numbers, attrs.bits, attrs.palette, false);
  if (e.columns != s.rows)
    fail(kName, "weight: got ", shape_text(weight), ", need ", s.rows, " rows, as axis ", attrs.axis, " of the output");
  s.codes = encoded_rows(e, numbers);
  return state;
}

template <class T>
struct Put {
  T* to;             // Address of the row's first number.
  int64_t run, gap;  // Numbers in a run, and numbers from one run to the next.

  void operator()(const T* numbers, int64_t begin, int64_t count) const {
    while (count > 0) {
      const int64_t inside = begin % run, some = std::min(count, run - inside);
      std::memcpy(to + begin / run * gap + inside, numbers, static_cast<size_t>(some) * sizeof(T));
      numbers += some;
      begin += some;
      count -= some;
    }
  }
};

// Decodes the terms [begin, end) of a row and stores them as T, float or fp16. begin has to be even.
template <class T>
void decode_terms(const Call& call, const DecodeState& s, int64_t row, int64_t begin, int64_t end) {
  const Tensor& out = call.outputs[0];
  const Put<T> put = {out.as<T>() + row * s.run, s.run, s.rows * s.run};
  const EncodedRow from(s.codes, call.inputs[0], call.inputs[1], row);
  float found[kPart];
  for (; begin < end; begin += kPart) {
    const int64_t count = std::min(kPart, end - begin);
    from.decode(begin, count, found);
    if constexpr (sizeof(T) == 2) {
      fp16 halves[kPart];
      convert(std::span(found, static_cast<size_t>(count)), std::span(halves, static_cast<size_t>(count)));
      put(halves, begin, count);
    } else {
      put(found, begin, count);
    }
  }
}

void cuts(const Call& call, Cuts& cuts) {
  cuts.add(static_cast<int>(call.attributes<DecodeAttrs>().axis), call.state<DecodeState>().rows);
}

int64_t cost(const Call& call) { return call.outputs[0].size() / 2; }

template <class T>
void run(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  const auto& s = call.state<DecodeState>();
  const Range rows = axis < 0 ? Range{0, s.rows} : range;
  const int64_t terms = s.run * s.num_runs;
  // Short runs of neighbouring rows share cache lines, so the loop writes the same part of all rows before the next
  // part.
  const int64_t step = s.num_runs == 1 ? terms : std::min(kPart, kRunsAtOnce * ceil_div(s.run, 2) * 2);
  for (int64_t begin = 0; begin < terms; begin += step)
    for (int64_t row = rows.begin; row < rows.end; ++row)
      decode_terms<T>(call, s, row, begin, std::min(terms, begin + step));
}

template <class T>
constexpr Kernel row_of() {
  return {
      .name = kName,
      .dtypes = sizeof(T) == 4 ? "8b,fp32->fp32" : "8b,fp32->fp16",
      .attrs = "bits:i palette:i axis:i",
      .attrs_bytes = sizeof(DecodeAttrs),
      .accepts = "dense",
      .prepare = prepare,
      .cuts = cuts,
      .cost = cost,
      .run = run<T>,
  };
}

constexpr Kernel kTable[] = {row_of<float>(), row_of<fp16>()};

}  // namespace

std::span<const Kernel> decode_table() { return kTable; }

}  // namespace hexane::cpu
