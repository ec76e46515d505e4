// The axes of a matrix product, and the axes along which it may be cut.
#include "cpu/matmul/matmul.h"

#include <algorithm>

#include "cpu/region.h"

namespace hexane::cpu {
namespace {

int64_t stride_of(const Tensor& t, int axis) { return t.shape[axis] > 1 ? t.strides[axis] : 0; }

// Returns the stride of an operand along batch axis `axis` of the output.
int64_t batch_stride(const char* kernel, const Tensor& t, int out_rank, int axis, int64_t extent, const char* what) {
  const int own = axis - (out_rank - t.rank);
  if (own < 0 || (t.shape[own] == 1 && extent != 1)) return 0;
  if (t.shape[own] != extent)
    fail(kernel, what, ": got ", t.shape[own], " in axis ", own, ", need 1 or the output's ", extent);
  return stride_of(t, own);
}

void check_rows(const char* kernel, const Tensor& t, const char* what) {
  if (t.size() > 0 && t.shape[t.rank - 1] > 1 && t.strides[t.rank - 1] != item_bytes(t))
    fail(kernel, what, ": got a last stride of ", t.strides[t.rank - 1], " bytes, need ", item_bytes(t));
}

}  // namespace

void set_shape(const char* kernel, MatmulShape& s, const Call& call, bool transpose_x, bool transpose_y,
               const ResolvedEpilogue& epilogue) {
  const Tensor &x = call.inputs[0], &y = call.inputs[1], &out = call.outputs[0];
  if (x.rank < 2 || y.rank < 2 || out.rank != std::max(x.rank, y.rank) || out.rank > kMaxRank)
    fail(kernel, "ranks: got ", x.rank, ", ", y.rank, " -> ", out.rank, ", need 2 to 8 and the larger for the output");
  check_operand(kernel, "x", x);
  check_operand(kernel, "y", y);
  check_written(kernel, "output", out);
  check_rows(kernel, x, "x");
  check_rows(kernel, y, "y");
  check_rows(kernel, out, "output");
  const int xk = x.rank - (transpose_x ? 2 : 1), xm = x.rank - (transpose_x ? 1 : 2),
            yk = y.rank - (transpose_y ? 1 : 2), yn = y.rank - (transpose_y ? 2 : 1);
  s.m = out.shape[out.rank - 2];
  s.n = out.shape[out.rank - 1];
  s.k = x.shape[xk];
  if (x.shape[xm] != s.m || y.shape[yk] != s.k || y.shape[yn] != s.n)
    fail(kernel, "shapes: got x ", x.shape[xm], " x ", s.k, " and y ", y.shape[yk], " x ", y.shape[yn],
         " as M x K and K x N, need an output of ", s.m, " x ", s.n, " and equal K");
  s.k_stride_x = stride_of(x, xk);
  s.k_stride_y = stride_of(y, yk);
  s.n_stride_y = stride_of(y, yn);

  s.num_axes = out.rank - 1;
  s.num_outer = 0;
  s.num_y_batches = 1;
  int64_t num_rows = 1;
  for (int axis = out.rank - 2; axis >= 0; --axis) {
    Axis& a = s.axes[axis];
    a = {out.shape[axis], 0, 0, stride_of(out, axis), 0, num_rows, {}};
    num_rows *= a.extent;
    if (axis == out.rank - 2) {
      a.x = stride_of(x, xm);
    } else {
      a.x = batch_stride(kernel, x, out.rank, axis, a.extent, "x");
      a.y = batch_stride(kernel, y, out.rank, axis, a.extent, "y");
      const int own = axis - (out.rank - y.rank);
      if (own >= 0 && packed_extent(y, own) > 1) {
        a.y_batch = s.num_y_batches;
        s.num_outer = std::max(s.num_outer, axis + 1);
      }
      if (own >= 0) s.num_y_batches *= packed_extent(y, own);
    }
    for (int e = 0; e < epilogue.num_extra; ++e) a.extra[e] = stride_of(call.inputs[epilogue.extra_operand[e]], axis);
  }
  s.rows_per_y = 1;
  for (int axis = s.num_outer; axis < s.num_axes; ++axis) s.rows_per_y *= s.axes[axis].extent;
}

Offsets offsets(const MatmulShape& s, int num_extra, const Range* box, int first, int last, int64_t index,
                Offsets from) {
  for (int axis = last - 1; axis >= first; --axis) {
    const int64_t extent = box[axis].end - box[axis].begin;
    const int64_t i = box[axis].begin + (axis == first ? index : index % extent);
    if (axis != first) index /= extent;
    const Axis& a = s.axes[axis];
    from.x += i * a.x;
    from.y += i * a.y;
    from.y_batch += i * a.y_batch;
    from.row += i * a.row;
    from.out += i * a.out;
    for (int e = 0; e < num_extra; ++e) from.extra[e] += i * a.extra[e];
  }
  return from;
}

void matmul_cuts(const Call& call, const MatmulShape& s, int64_t batch_bytes, Cuts& cuts, bool decodes, int64_t grain) {
  const Tensor& out = call.outputs[0];
  // If each piece had some rows, such as pixels of an image, each would decode all columns again.
  const bool columns_alone = decodes && out.rank > 2 && s.n >= 8 * kPanelLanes && s.n > out.size() / s.n;
  if (columns_alone) cuts.add(out.rank - 1, s.n, grain);
  for (int axis = 0; axis + 2 < out.rank; ++axis)
    if (out.shape[axis] > 1 && cuts.count < 6) cuts.add(axis, out.shape[axis]);
  // Cuts along the larger of rows and columns, so that pieces read the smaller operand again. A small y stays whole: it
  // fits in caches, and pieces of its columns are narrow.
  const bool small_y = batch_bytes <= kInnerPanelBytes && s.m >= 4 * kTileRows;
  const bool columns_first = (s.n >= s.m && !small_y) || s.m <= 2 * kTileRows;
  if (columns_first && !columns_alone && s.n > grain) cuts.add(out.rank - 1, s.n, grain);
  if (s.m > kTileRows) cuts.add(out.rank - 2, s.m, kTileRows);
  if (!columns_first && !columns_alone && s.n > grain) cuts.add(out.rank - 1, s.n, grain);
}

Box matmul_needs(const Call& call, int input, int first_extra, const Box& out, bool transpose_x, bool transpose_y) {
  const Tensor& t = call.inputs[input];
  if (input >= first_extra) return out;
  if (input > 1) return per_column(t, out);
  Box box = aligned(t, out);
  const bool swapped = input == 0 ? transpose_x : transpose_y;
  const int k = t.rank - ((input == 0) != swapped ? 1 : 2), other = 2 * t.rank - 3 - k;
  box[k] = {0, t.shape[k]};
  box[other] = out[out.rank - (input == 0 ? 2 : 1)];
  return box;
}

}  // namespace hexane::cpu
