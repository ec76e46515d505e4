// gather: looks up elements and slices of a tensor at indices (embedding tables, take_along_axis); also one_hot.
#include "cpu/move/indexing.h"
#include "cpu/region.h"
#include "cpu/tables.h"

namespace hexane::cpu {
namespace {

struct AxisAttributes {
  int64_t axis;
};

struct GatherNdAttributes {
  int64_t batch_dims;
};

struct OneHotAttributes {
  int64_t axis;
  int64_t depth;
  double on;
  double off;
};

struct GatherState {
  const char* name;
  Indexing indexing;
  StridedCopy tail;
  PackedRows packed = {};  // the data, if not read from the input
};

Prepared finish(const char* name, const Call& call, Indexing indexing) {
  const Tensor& out = call.outputs[0];
  indexing.wide = call.inputs[1].dtype == DType::kInt64;
  const StridedCopy tail = plan_copy(indexing.tail, indexing.num_tail, item_bytes(out));
  return std::make_shared<GatherState>(GatherState{name, indexing, tail});
}

void check_gather(const char* name, const Call& call, int rank) {
  const Tensor &data = call.inputs[0], &indices = call.inputs[1], &out = call.outputs[0];
  check_operand(name, "data", data);
  check_indices(name, indices);
  check_written(name, "output", out);
  if (item_bytes(out) != item_bytes(data))
    fail(name, "output dtype: got ", info(out.dtype).name, ", need ", info(data.dtype).name);
  if (out.rank != rank) fail(name, "output rank: got ", out.rank, ", need ", rank);
}

void check_extent(const char* name, const Tensor& out, int axis, int64_t need) {
  if (out.shape[axis] != need)
    fail(name, "axis ", axis, " of the output: got ", out.shape[axis], " in ", shape_text(out), ", need ", need);
}

// data[before, axis, after], indices[i] -> out[before, i, after]
Prepared prepare_gather(const Call& call) {
  const Tensor &data = call.inputs[0], &indices = call.inputs[1], &out = call.outputs[0];
  check_gather("gather", call, data.rank + indices.rank - 1);
  const int axis = check_axis("gather", call.attributes<AxisAttributes>().axis, data.rank);
  Indexing indexing;
  for (int i = 0; i < axis; ++i) {
    check_extent("gather", out, i, data.shape[i]);
    indexing.walk[indexing.num_walk++] = {{0, out.shape[i]}, out.strides[i], 0, data.strides[i]};
  }
  for (int i = 0; i < indices.rank; ++i) {
    check_extent("gather", out, axis + i, indices.shape[i]);
    indexing.walk[indexing.num_walk++] = {{0, indices.shape[i]}, out.strides[axis + i], indices.strides[i], 0};
  }
  for (int i = axis + 1; i < data.rank; ++i) {
    const int o = i + indices.rank - 1;
    check_extent("gather", out, o, data.shape[i]);
    indexing.tail[indexing.num_tail++] = {out.shape[o], data.strides[i], out.strides[o]};
  }
  indexing.coordinates[indexing.num_coordinates++] = {data.shape[axis], data.strides[axis], {0, data.shape[axis]}};
  return finish("gather", call, indexing);
}

// Rows of bytes may come from packed rows.
Prepared prepare_packed_gather(const Call& call, int input, const PackedRows& rows) {
  const Tensor& data = call.inputs[0];
  const int64_t axis = call.attributes<AxisAttributes>().axis;
  if (input != 0 || data.rank != 2 || (axis != 0 && axis != -2) || item_bytes(data) != 1 || data.strides[1] != 1 ||
      data.strides[0] != data.shape[1] || data.size() == 0)
    return nullptr;
  GatherState state = call.state<GatherState>();
  state.packed = rows;
  return std::make_shared<GatherState>(std::move(state));
}

// Copies `count` bytes of a packed row, from byte `begin` of all rows on, to addresses `stride` bytes apart.
void copy_packed(const PackedRows& rows, int64_t row_bytes, int64_t begin, int64_t count, std::byte* to,
                 int64_t stride) {
  const int64_t row = begin / row_bytes;
  const std::byte* from =
      rows.data + row / rows.group * rows.group_bytes + begin % row_bytes * rows.group + row % rows.group;
  for (int64_t j = 0; j < count; ++j) to[j * stride] = from[j * rows.group];
}

// out[..., i, ...] = data[..., indices[..., i, ...], ...]
Prepared prepare_gather_along_axis(const Call& call) {
  const char* name = "gather_along_axis";
  const Tensor &data = call.inputs[0], &indices = call.inputs[1], &out = call.outputs[0];
  check_gather(name, call, data.rank);
  const int axis = check_axis(name, call.attributes<AxisAttributes>().axis, data.rank);
  check_same_shape(name, out, indices);
  Indexing indexing;
  for (int i = 0; i < data.rank; ++i) {
    if (i != axis && out.shape[i] > data.shape[i])
      fail(name, "axis ", i, " of the indices: got ", out.shape[i], ", need at most ", data.shape[i]);
    indexing.walk[indexing.num_walk++] = {
        {0, out.shape[i]}, out.strides[i], indices.strides[i], i == axis ? 0 : data.strides[i]};
  }
  indexing.coordinates[indexing.num_coordinates++] = {data.shape[axis], data.strides[axis], {0, data.shape[axis]}};
  return finish(name, call, indexing);
}

// data[batch, coordinates, after], indices[batch, i, number of coordinates] -> out[batch, i, after]
Prepared prepare_gather_nd(const Call& call) {
  const Tensor &data = call.inputs[0], &indices = call.inputs[1], &out = call.outputs[0];
  check_indices("gather_nd", indices);
  const int64_t batch = call.attributes<GatherNdAttributes>().batch_dims;
  if (batch < 0 || batch >= indices.rank || batch > data.rank)
    fail("gather_nd", "batch_dims: got ", batch, ", need less than the rank of the indices, ", indices.rank);
  const int walked = indices.rank - 1;
  const int64_t count = indices.shape[walked];
  if (count > data.rank - batch)
    fail("gather_nd", "indices: got ", count, " coordinates, need at most ", data.rank - batch);
  const int used = static_cast<int>(batch + count);
  check_gather("gather_nd", call, walked + data.rank - used);
  Indexing indexing;
  for (int i = 0; i < walked; ++i) {
    if (i < batch && indices.shape[i] != data.shape[i])
      fail("gather_nd", "axis ", i, " of the indices: got ", indices.shape[i], ", need ", data.shape[i]);
    check_extent("gather_nd", out, i, indices.shape[i]);
    indexing.walk[indexing.num_walk++] = {
        {0, out.shape[i]}, out.strides[i], indices.strides[i], i < batch ? data.strides[i] : 0};
  }
  for (int i = static_cast<int>(batch); i < used; ++i)
    indexing.coordinates[indexing.num_coordinates++] = {data.shape[i], data.strides[i], {0, data.shape[i]}};
  indexing.coordinate_stride = indices.strides[walked];
  for (int i = used; i < data.rank; ++i) {
    const int o = walked + i - used;
    check_extent("gather_nd", out, o, data.shape[i]);
    indexing.tail[indexing.num_tail++] = {out.shape[o], data.strides[i], out.strides[o]};
  }
  return finish("gather_nd", call, indexing);
}

void run_gather(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  const Tensor &data = call.inputs[0], &indices = call.inputs[1], &out = call.outputs[0];
  const auto& state = call.state<GatherState>();
  if (out.size() == 0) return;
  Indexing piece = state.indexing;
  StridedCopy tail = state.tail;
  if (axis >= 0 && axis < piece.num_walk) {
    piece.walk[axis].range = range;
  } else if (axis >= 0) {
    CopyAxis& cut = piece.tail[axis - piece.num_walk];
    piece.tail_begin = range.begin * cut.out;
    piece.far_tail_begin = range.begin * cut.in;
    cut.extent = range.end - range.begin;
    tail = plan_copy(piece.tail, piece.num_tail, item_bytes(out));
  }
  std::byte* const to = out.data;
  const std::byte* const from = data.data;
  if (state.packed.block) {
    const CopyAxis& line = piece.tail[0];
    return walk<true>(state.name, piece, indices.data, [&](int64_t near, int64_t far) {
      copy_packed(state.packed, data.shape[1], far, line.extent, to + near, line.out);
    });
  }
  if (tail.contiguous() && tail.unit == 4)
    walk<true>(state.name, piece, indices.data,
               [=](int64_t near, int64_t far) { std::memcpy(to + near, from + far, 4); });
  else if (tail.contiguous())
    walk<true>(state.name, piece, indices.data,
               [&](int64_t near, int64_t far) { copy_run(out.data + near, data.data + far, tail.unit); });
  else
    walk<true>(state.name, piece, indices.data,
               [&](int64_t near, int64_t far) { run_copy(tail, out.data + near, data.data + far); });
}

// data[before, axis, after], indices[i] -> out[before, i, after]
Box gather_needs(const Call& call, int input, const Box& out) {
  const int count = call.inputs[1].rank, rank = call.inputs[0].rank;
  const int64_t given = call.attributes<AxisAttributes>().axis;
  const int axis = static_cast<int>(given < 0 ? given + rank : given);
  Box box = whole(call.inputs[input]);
  for (int i = 0; i < box.rank; ++i) {
    if (input == 1)
      box[i] = out[axis + i];
    else if (i != axis)
      box[i] = out[i < axis ? i : i + count - 1];
  }
  return box;
}

Box gather_along_axis_needs(const Call& call, int input, const Box& out) {
  const int64_t axis = call.attributes<AxisAttributes>().axis;
  return input == 1 ? out : all_along(call.inputs[0], static_cast<int>(axis < 0 ? axis + out.rank : axis), out);
}

// data[batch, coordinates, after], indices[batch, i, number of coordinates] -> out[batch, i, after]
Box gather_nd_needs(const Call& call, int input, const Box& out) {
  const Indexing& indexing = call.state<GatherState>().indexing;
  const int walked = indexing.num_walk, batch = static_cast<int>(call.attributes<GatherNdAttributes>().batch_dims);
  Box box = whole(call.inputs[input]);
  for (int i = 0; i < (input == 1 ? walked : batch); ++i) box[i] = out[i];
  const int used = batch + indexing.num_coordinates;
  for (int i = used; input == 0 && i < box.rank; ++i) box[i] = out[walked + i - used];
  return box;
}

int64_t gather_cost(const Call& call) {
  const auto& state = call.state<GatherState>();
  const int64_t size = call.outputs[0].size();
  int64_t items = 1;
  for (int i = 0; i < state.indexing.num_tail; ++i) items *= state.indexing.tail[i].extent;
  return 50 + (items ? size / items * 3 : 0) + size * item_bytes(call.outputs[0]) / 8;
}

// ---- one_hot ----

// one_hot allows an index out of range: it sets no element. So the walk (indexing.h) checks no bound: it has no
// coordinates, and its far side is the tensor of indices itself.
struct OneHotState {
  int axis;
  uint64_t on, off;
  Indexing indexing;
};

Prepared prepare_one_hot(const Call& call) {
  const Tensor &indices = call.inputs[0], &out = call.outputs[0];
  const auto& a = call.attributes<OneHotAttributes>();
  check_indices("one_hot", indices);
  check_written("one_hot", "output", out);
  if (out.rank != indices.rank + 1) fail("one_hot", "output rank: got ", out.rank, ", need ", indices.rank + 1);
  OneHotState state{check_axis("one_hot", a.axis, out.rank),
                    scalar_bits("one_hot", out.dtype, a.on),
                    scalar_bits("one_hot", out.dtype, a.off),
                    {}};
  for (int i = 0; i < out.rank; ++i) {
    const int from = i - (i > state.axis);
    check_extent("one_hot", out, i, i == state.axis ? a.depth : indices.shape[from]);
    if (i == state.axis)  // this axis is walked too, so that walk axes correspond to output axes
      state.indexing.walk[i] = {{0, 1}, 0, 0, 0};
    else
      state.indexing.walk[i] = {{0, out.shape[i]}, out.strides[i], 0, indices.strides[from]};
  }
  state.indexing.num_walk = out.rank;
  state.indexing.wide = indices.dtype == DType::kInt64;
  return std::make_shared<OneHotState>(state);
}

void run_one_hot(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  const Tensor &indices = call.inputs[0], &out = call.outputs[0];
  const auto& state = call.state<OneHotState>();
  if (out.size() == 0) return;
  const auto part = [&](int i) { return i == axis ? range : Range{0, out.shape[i]}; };
  const int64_t bytes = item_bytes(out), depth = out.shape[state.axis];
  std::byte* base = out.data;
  CopyAxis axes[8];
  for (int i = 0; i < out.rank; ++i) axes[i] = {part(i).end - part(i).begin, 0, out.strides[i]};
  if (axis >= 0) base += range.begin * out.strides[axis];
  run_copy(plan_copy(axes, out.rank, bytes), base, reinterpret_cast<const std::byte*>(&state.off));

  Indexing piece = state.indexing;
  if (axis >= 0 && axis != state.axis) piece.walk[axis].range = range;
  const Range hot = part(state.axis);
  walk("one_hot", piece, nullptr, [&](int64_t near, int64_t from) {
    int64_t i = read_index(indices.data + from, piece.wide);
    if (i < 0) i += depth;
    if (i >= hot.begin && i < hot.end)
      copy_run(out.data + near + i * out.strides[state.axis], reinterpret_cast<const std::byte*>(&state.on), bytes);
  });
}

Box one_hot_needs(const Call& call, int, const Box& out) {
  const int hot = call.state<OneHotState>().axis;
  Box box{out.rank - 1, {}};
  for (int i = 0; i < box.rank; ++i) box[i] = out[i + (i >= hot)];
  return box;
}

int64_t one_hot_cost(const Call& call) {
  return 50 + call.inputs[0].size() * 3 + call.outputs[0].size() * item_bytes(call.outputs[0]) / 16;
}

// `accepts`: gather and gather_along_axis accept any strides, gather_nd only dense rows.
template <class Attributes>
constexpr Kernel gather_row(const char* name, const char* dtypes, const char* layout, const char* accepts,
                            Box (*needs)(const Call&, int, const Box&), Prepared (*prepare)(const Call&),
                            Prepared (*prepare_packed)(const Call&, int, const PackedRows&) = nullptr) {
  return {
      .name = name,
      .dtypes = dtypes,
      .family = "any",
      .attrs = layout,
      .attrs_bytes = sizeof(Attributes),
      .accepts = accepts,
      .prepare = prepare,
      .prepare_packed = prepare_packed,
      .cuts = cut_lines,
      .needs = needs,
      .cost = gather_cost,
      .run = run_gather,
  };
}
#define HEXANE_GATHERS(name, layout, Attributes, accepts, needs, ...)                      \
  gather_row<Attributes>(name, "8b,int32->8b", layout, accepts, needs, __VA_ARGS__),       \
      gather_row<Attributes>(name, "8b,int64->8b", layout, accepts, needs, __VA_ARGS__),   \
      gather_row<Attributes>(name, "16b,int32->16b", layout, accepts, needs, __VA_ARGS__), \
      gather_row<Attributes>(name, "16b,int64->16b", layout, accepts, needs, __VA_ARGS__), \
      gather_row<Attributes>(name, "32b,int32->32b", layout, accepts, needs, __VA_ARGS__), \
      gather_row<Attributes>(name, "32b,int64->32b", layout, accepts, needs, __VA_ARGS__), \
      gather_row<Attributes>(name, "64b,int32->64b", layout, accepts, needs, __VA_ARGS__), \
      gather_row<Attributes>(name, "64b,int64->64b", layout, accepts, needs, __VA_ARGS__)
constexpr Kernel one_hot(const char* dtypes) {
  return {
      .name = "one_hot",
      .dtypes = dtypes,
      .family = "any",
      .attrs = "axis:i depth:i on:f off:f",
      .attrs_bytes = sizeof(OneHotAttributes),
      .accepts = "strided",
      .prepare = prepare_one_hot,
      .cuts = cut_lines,
      .needs = one_hot_needs,
      .cost = one_hot_cost,
      .run = run_one_hot,
  };
}

constexpr Kernel kTable[] = {
    HEXANE_GATHERS("gather", "axis:i", AxisAttributes, "strided", gather_needs, prepare_gather, prepare_packed_gather),
    HEXANE_GATHERS("gather_along_axis", "axis:i", AxisAttributes, "strided", gather_along_axis_needs,
                   prepare_gather_along_axis),
    HEXANE_GATHERS("gather_nd", "batch_dims:i", GatherNdAttributes, "rows", gather_nd_needs, prepare_gather_nd),
    one_hot("int32->fp32"),
    one_hot("int64->fp32"),
    one_hot("int32->int32"),
    one_hot("int64->int32"),
    one_hot("int32->int64"),
    one_hot("int64->int64"),
    one_hot("int32->bool"),
    one_hot("int64->bool"),
};

}  // namespace

std::span<const Kernel> gather_table() { return kTable; }

}  // namespace hexane::cpu
