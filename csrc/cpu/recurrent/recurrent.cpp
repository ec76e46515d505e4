// recurrent: an RNN, a GRU or an LSTM over all steps, of one direction or both (recurrent.h). The kernel does the same
// operations in the same order as the network written with separate ops, so fp32 results are equal bit for bit. In
// fp16, states and gates stay in fp32, and results are rounded once.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/recurrent/recurrent.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cpu/simd/math-inl.h"

#include <algorithm>

#include "cpu/recurrent/recurrent.h"
#include "cpu/tables.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

using In = RecurrentInputs;

// Computes y[i] = f(a[i], b[i], c[i]).
template <class F>
HWY_INLINE void map_three(const float* a, const float* b, const float* c, float* y, int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(f(load(a + i), load(b + i), load(c + i)), y + i);
  if (i < n) store_part(f(load_part(a + i, n - i), load_part(b + i, n - i), load_part(c + i, n - i)), y + i, n - i);
}

// One direction of a call.
template <class T>
class Direction {
 public:
  Direction(const Call& call, const std::byte* packed, float* scratch, int64_t direction)
      : s_(call.state<RecurrentState>()),
        call_(call),
        d_(direction),
        scratch_(scratch),
        packed_(packed + direction * s_.direction_bytes),
        functions_(s_.functions.data() + direction * (static_cast<int64_t>(s_.functions.size()) / s_.directions)),
        hidden_(scratch + s_.hidden_at),
        cell_(scratch + s_.cell_at),
        backwards_(s_.reverse || direction == 1) {
    const Tensor* lengths = find(In::kLengths);
    lengths_ = lengths ? lengths->as<int64_t>() : nullptr;
    if (const Tensor* peephole = find(In::kPeephole)) {
      peephole_ = scratch + s_.peephole_at;
      gemm_ops().to_fp32(peephole->data + d_ * peephole->strides[0], peephole->dtype, 3 * s_.hidden, peephole_);
    }
  }

  void run() {
    begin(In::kHidden, hidden_);
    if (s_.cell == Cell::kLstm) begin(In::kCell, cell_);
    for (int64_t step = 0; step < s_.time; step += s_.block_steps) {
      const int64_t end = std::min(step + s_.block_steps, s_.time);
      multiply_inputs(step, end);
      for (int64_t i = step; i < end; ++i) advance(moment(i), scratch_ + (i - step) * s_.batch * s_.width());
    }
    finish(call_.outputs[1], hidden_);
    if (s_.cell == Cell::kLstm) finish(call_.outputs[2], cell_);
  }

 private:
  const Tensor* find(size_t i) const {
    return i < call_.inputs.size() && call_.inputs[i].present() ? &call_.inputs[i] : nullptr;
  }
  int64_t moment(int64_t step) const { return backwards_ ? s_.time - 1 - step : step; }
  bool runs(int64_t item, int64_t t) const { return !lengths_ || t < lengths_[item]; }

  std::byte* state_row(const Tensor& state, int64_t item) const {
    return state.data + d_ * state.strides[s_.state_direction] + item * state.strides[s_.state_batch];
  }
  void begin(size_t input, float* state) const {
    const Tensor* given = find(input);
    for (int64_t i = 0; i < s_.batch; ++i, state += s_.hidden)
      if (given)
        gemm_ops().to_fp32(state_row(*given, i), given->dtype, s_.hidden, state);
      else
        std::fill_n(state, s_.hidden, 0.0f);
  }
  void finish(const Tensor& out, const float* state) const {
    for (int64_t i = 0; i < s_.batch; ++i, state += s_.hidden) store_row(state, state_row(out, i));
  }
  void store_row(const float* from, std::byte* to) const {
    map(from, reinterpret_cast<T*>(to), s_.hidden, [](V v) HWY_ATTR { return v; });
  }

  // Multiplies rows of a by a matrix and adds its bias. row_of(i) returns the address of row i. `adds`: also adds the
  // contents of `out`, whose rows are `pitch` floats apart.
  template <class RowOf>
  void product(const PackedMatrix& m, int64_t rows, RowOf row_of, float* out, int64_t pitch, bool adds) const {
    ResolvedEpilogue epilogue;
    if (adds) {
      epilogue.count = epilogue.num_extra = 1;
      epilogue.slots[0].kind = ResolvedSlot::kAdd;
    }
    const float* a[kTileRows];
    Tile tile{};
    tile.a = a;
    tile.num_segments = 1;
    tile.length = m.k;
    tile.panel_bytes = m.panel_bytes;
    tile.bias = find(In::kBias) ? reinterpret_cast<const float*>(packed_ + m.bias) : nullptr;
    tile.epilogue = &epilogue;
    tile.num_columns = m.columns;
    multiply(tile, s_.half_panels, packed_ + m.panels, rows, {0, m.columns}, [&](int64_t row, int count, Tile& t) {
      for (int i = 0; i < count; ++i) {
        a[i] = row_of(row + i);
        t.out[i] = reinterpret_cast<std::byte*>(out + (row + i) * pitch);
        t.extra[0][i] = t.out[i];
      }
    });
  }

  // Computes the inputs' part of the gates for a block of steps, in the order of execution.
  void multiply_inputs(int64_t step, int64_t end) const {
    const Tensor& x = call_.inputs[In::kX];
    const auto place = [&](int64_t row) {
      return x.data + moment(step + row / s_.batch) * x.strides[s_.time_axis] +
             row % s_.batch * x.strides[s_.batch_axis];
    };
    const int64_t rows = (end - step) * s_.batch;
    float* const floats = scratch_ + s_.x_at;
    for (int64_t row = 0; !s_.dense_x && row < rows; ++row)
      gemm_ops().to_fp32(place(row), x.dtype, s_.input, floats + row * s_.input);
    product(
        s_.x_matrix, rows,
        [&](int64_t row) { return s_.dense_x ? reinterpret_cast<const float*>(place(row)) : floats + row * s_.input; },
        scratch_, s_.width(), false);
  }

  void multiply_hidden(const PackedMatrix& m, const float* hidden, float* out, int64_t pitch, bool adds) const {
    product(
        m, s_.batch, [&](int64_t row) { return hidden + row * s_.hidden; }, out, pitch, adds);
  }

  void apply(int function, float* gates, int64_t n) const {
    if (s_.clips) {
      static const RowFunction clip = find_row_function("clip");
      clip(gates, n, -s_.clip, s_.clip);
    }
    call_function(function, gates, n);
  }
  void call_function(int function, float* gates, int64_t n) const {
    const RecurrentFunction& f = functions_[function];
    f.apply(gates, n, f.alpha, f.beta);
  }

  // Runs one step of all batch items. `gates` has the inputs' part of the gates.
  void advance(int64_t t, float* gates) const {
    const int64_t h = s_.hidden, width = s_.width();
    float* const inner = scratch_ + s_.product_at;
    multiply_hidden(s_.h_matrix, hidden_, gates, width, true);
    if (s_.cell == Cell::kGru) reset(gates, inner);
    for (int64_t i = 0; i < s_.batch; ++i) {
      const bool is_running = runs(i, t);
      float *row = gates + i * width, *hidden = hidden_ + i * h;
      if (is_running) {
        if (s_.cell == Cell::kLstm)
          lstm(row, hidden, cell_ + i * h);
        else if (s_.cell == Cell::kGru)
          gru(row, inner + i * h, hidden);
        else
          rnn(row, hidden);
      }
      write(t, i, hidden, is_running);
    }
  }

  void write(int64_t t, int64_t item, const float* hidden, bool is_running) const {
    if (!s_.keeps_sequence && s_.time > 1) return;
    const Tensor& y = call_.outputs[0];
    std::byte* to =
        y.data + t * y.strides[s_.time_axis] + d_ * y.strides[s_.y_direction] + item * y.strides[s_.y_batch];
    if (is_running)
      store_row(hidden, to);
    else
      std::fill_n(reinterpret_cast<T*>(to), s_.hidden, T{});
  }

  void rnn(float* row, float* hidden) const {
    apply(0, row, s_.hidden);
    std::copy_n(row, s_.hidden, hidden);
  }

  // Computes the update and reset gates of a GRU, and the recurrent part of gate `new`. With linear_before_reset the
  // recurrent part of `new` goes to `inner`, otherwise it is added to the inputs' part.
  void reset(float* gates, float* inner) const {
    const int64_t h = s_.hidden, width = s_.width();
    float* const open = scratch_ + s_.reset_at;
    for (int64_t i = 0; i < s_.batch; ++i) {
      apply(0, gates + i * width, 2 * h);
      if (!s_.linear)
        map(gates + i * width + h, hidden_ + i * h, open + i * h, h, [](V a, V b) HWY_ATTR { return hn::Mul(a, b); });
    }
    if (s_.linear)
      multiply_hidden(s_.last_matrix, hidden_, inner, h, false);
    else
      multiply_hidden(s_.last_matrix, open, gates + 2 * h, width, true);
  }

  void gru(float* row, const float* inner, float* hidden) const {
    const int64_t h = s_.hidden;
    float *update = row, *reset = row + h, *made = row + 2 * h;
    if (s_.linear)
      map_three(made, reset, inner, made, h, [](V x, V r, V p) HWY_ATTR { return hn::Add(x, hn::Mul(r, p)); });
    apply(1, made, h);
    map_three(update, made, hidden, hidden, h,
              [](V z, V n, V old) HWY_ATTR { return hn::Add(hn::Mul(hn::Sub(set(1.0f), z), n), hn::Mul(z, old)); });
  }

  // Runs an LSTM step of one item. row: the gates input, output, forget and new, in this order.
  void lstm(float* row, float* hidden, float* cell) const {
    const int64_t h = s_.hidden;
    float *enter = row, *open = row + h, *keep = row + 2 * h, *made = row + 3 * h;
    const auto see = [&](float* gate, const float* peephole) {
      map_three(gate, peephole, cell, gate, h, [](V x, V p, V c) HWY_ATTR { return hn::Add(x, hn::Mul(p, c)); });
    };
    if (peephole_) {
      see(enter, peephole_);
      see(keep, peephole_ + 2 * h);
      apply(0, enter, h);
      apply(0, keep, h);
    } else {
      apply(0, row, 3 * h);
    }
    apply(1, made, h);
    map(enter, made, made, h, [](V i, V n) HWY_ATTR { return hn::Mul(i, n); });
    map_three(keep, cell, made, cell, h, [](V f, V c, V n) HWY_ATTR { return hn::Add(hn::Mul(f, c), n); });
    if (peephole_) {
      see(open, peephole_ + h);
      apply(0, open, h);
    }
    std::copy_n(cell, h, made);
    call_function(2, made, h);
    map(open, made, hidden, h, [](V o, V c) HWY_ATTR { return hn::Mul(o, c); });
  }

  const RecurrentState& s_;
  const Call& call_;
  const int64_t d_;
  float* const scratch_;
  const std::byte* const packed_;
  const RecurrentFunction* const functions_;
  float *const hidden_, *const cell_;
  float* peephole_ = nullptr;
  const int64_t* lengths_;
  const bool backwards_;
};

template <class T>
void run(const Call& call, int, Range, std::byte* scratch, const std::byte* shared) {
  const auto& s = call.state<RecurrentState>();
  const std::byte* packed = s.is_packed ? s.packed->data() : shared;
  for (int64_t d = 0; d < s.directions; ++d) Direction<T>(call, packed, reinterpret_cast<float*>(scratch), d).run();
}

template <class T>
constexpr Kernel recurrent(const char* dtypes) {
  return {
      .name = "recurrent",
      .dtypes = dtypes,
      .attrs = "cell:s batch_first:i reverse:i linear_before_reset:i clip:f activations:L",
      .attrs_bytes = sizeof(RecurrentAttributes),
      .accepts = "rows",
      .prepare = prepare_recurrent,
      .cost = recurrent_cost,
      .scratch = recurrent_scratch,
      .shared_scratch = recurrent_shared_scratch,
      .begin = recurrent_begin,
      .run = run<T>,
  };
}

const Kernel kTable[] = {
    recurrent<float>("fp32,fp32,fp32,fp32,64b,fp32...->fp32..."),
    recurrent<float16_t>("fp16,fp16,fp16,fp16,64b,fp16...->fp16..."),
};

std::span<const Kernel> recurrent_kernels() { return kTable; }

}  // namespace
}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::cpu {
HWY_EXPORT(recurrent_kernels);
std::span<const Kernel> recurrent_table() { return HWY_DYNAMIC_DISPATCH(recurrent_kernels)(); }
}  // namespace hexane::cpu
#endif
