// Writes updates at indices, or combines them with the old values. scatter_nd and scatter_along_axis start from a copy
// of the data, unless the output lies over the data. write_slice changes a state in place.
#include <algorithm>
#include <type_traits>

#include "core/fp16.h"
#include "cpu/move/indexing.h"
#include "cpu/region.h"
#include "cpu/tables.h"

namespace hexane::cpu {
namespace {

struct ScatterNdAttributes {
  uint64_t mode;  // "update" | "add" | "mul" | "max" | "min"
};

struct ScatterAlongAxisAttributes {
  int64_t axis;
  uint64_t mode;
};

struct WriteSliceAttributes {
  int64_t axis;
};

enum class Mode { kUpdate, kAdd, kMul, kMax, kMin };

Mode scatter_mode(const char* name, const Call& call, uint64_t mode) {
  const std::string_view text = call.string(mode);
  const DType dtype = call.outputs[0].dtype;
  constexpr std::string_view kNames[] = {"update", "add", "mul", "max", "min"};
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (text != kNames[i]) continue;
    constexpr DType kCombined[] = {DType::kFp32, DType::kFp64, DType::kFp16, DType::kInt32, DType::kInt64};
    if (i && std::find(std::begin(kCombined), std::end(kCombined), dtype) == std::end(kCombined))
      fail(name, "mode ", text, ": got dtype ", info(dtype).name, ", need fp32, fp64, fp16, int32 or int64");
    return static_cast<Mode>(i);
  }
  fail(name, "mode: got '", text, "', need update, add, mul, max or min");
}

struct ScatterState {
  const char* name;
  Mode mode;
  Indexing indexing;  // near: updates, far: output
  StridedCopy tail;
  StridedCopy copy;                                        // Copy of the data to the output.
  enum class Role { kWalk, kCoordinate, kTail } roles[8];  // The role of each output axis.
  int places[8];                                           // Index of each output axis in the array of its role.
};

StridedCopy plan_data(const Call& call, int axis, Range range) {
  const Tensor &data = call.inputs[0], &out = call.outputs[0];
  CopyAxis axes[8];
  for (int i = 0; i < out.rank; ++i) axes[i] = {out.shape[i], data.strides[i], out.strides[i]};
  if (axis >= 0) axes[axis].extent = range.end - range.begin;
  return plan_copy(axes, out.rank, item_bytes(out));
}

void check_scatter(const char* name, const Call& call) {
  const Tensor &data = call.inputs[0], &indices = call.inputs[1], &updates = call.inputs[2], &out = call.outputs[0];
  check_operand(name, "data", data);
  check_indices(name, indices);
  check_operand(name, "updates", updates);
  check_written(name, "output", out);
  check_same_shape(name, out, data);
  if (data.dtype != out.dtype || updates.dtype != out.dtype)
    fail(name, "dtype: got data of ", info(data.dtype).name, " and updates of ", info(updates.dtype).name, ", need ",
         info(out.dtype).name);
}

Prepared finish(const Call& call, ScatterState state) {
  state.indexing.wide = call.inputs[1].dtype == DType::kInt64;
  state.tail = plan_copy(state.indexing.tail, state.indexing.num_tail, item_bytes(call.outputs[0]));
  state.copy = plan_data(call, -1, {});
  return std::make_shared<ScatterState>(state);
}

// indices[i, number of coordinates], updates[i, after] -> out[coordinates, after]
Prepared prepare_scatter_nd(const Call& call) {
  const Tensor &indices = call.inputs[1], &updates = call.inputs[2], &out = call.outputs[0];
  check_scatter("scatter_nd", call);
  if (indices.rank < 1) fail("scatter_nd", "indices rank: got 0, need 1 or more");
  const int walked = indices.rank - 1;
  const int64_t count = indices.shape[walked];
  if (count > out.rank) fail("scatter_nd", "indices: got ", count, " coordinates, need at most ", out.rank);
  const int used = static_cast<int>(count);
  if (updates.rank != walked + out.rank - used)
    fail("scatter_nd", "updates rank: got ", updates.rank, ", need ", walked + out.rank - used);
  ScatterState state{
      "scatter_nd", scatter_mode("scatter_nd", call, call.attributes<ScatterNdAttributes>().mode), {}, {}, {}, {}, {}};
  Indexing& indexing = state.indexing;
  for (int i = 0; i < updates.rank; ++i) {
    const int64_t need = i < walked ? indices.shape[i] : out.shape[used + i - walked];
    if (updates.shape[i] != need)
      fail("scatter_nd", "axis ", i, " of the updates: got ", updates.shape[i], ", need ", need);
  }
  for (int i = 0; i < walked; ++i)
    indexing.walk[indexing.num_walk++] = {{0, updates.shape[i]}, updates.strides[i], indices.strides[i], 0};
  for (int i = 0; i < out.rank; ++i) {
    const bool decided = i < used;
    state.roles[i] = decided ? ScatterState::Role::kCoordinate : ScatterState::Role::kTail;
    state.places[i] = decided ? i : i - used;
    if (decided)
      indexing.coordinates[indexing.num_coordinates++] = {out.shape[i], out.strides[i], {0, out.shape[i]}};
    else
      indexing.tail[indexing.num_tail++] = {out.shape[i], updates.strides[walked + i - used], out.strides[i]};
  }
  indexing.coordinate_stride = indices.strides[walked];
  return finish(call, state);
}

// out[..., indices[..., i, ...], ...] <- updates[..., i, ...]
Prepared prepare_scatter_along_axis(const Call& call) {
  const char* name = "scatter_along_axis";
  const Tensor &indices = call.inputs[1], &updates = call.inputs[2], &out = call.outputs[0];
  const auto& attributes = call.attributes<ScatterAlongAxisAttributes>();
  check_scatter(name, call);
  check_same_shape(name, updates, indices);
  if (updates.rank != out.rank) fail(name, "updates rank: got ", updates.rank, ", need ", out.rank);
  const int axis = check_axis(name, attributes.axis, out.rank);
  ScatterState state{name, scatter_mode(name, call, attributes.mode), {}, {}, {}, {}, {}};
  for (int i = 0; i < out.rank; ++i) {
    if (i != axis && updates.shape[i] > out.shape[i])
      fail(name, "axis ", i, " of the updates: got ", updates.shape[i], ", need at most ", out.shape[i]);
    state.indexing.walk[i] = {
        {0, updates.shape[i]}, updates.strides[i], indices.strides[i], i == axis ? 0 : out.strides[i]};
    state.roles[i] = i == axis ? ScatterState::Role::kCoordinate : ScatterState::Role::kWalk;
    state.places[i] = i == axis ? 0 : i;
  }
  state.indexing.num_walk = out.rank;
  state.indexing.num_coordinates = 1;
  state.indexing.coordinates[0] = {out.shape[axis], out.strides[axis], {0, out.shape[axis]}};
  return finish(call, state);
}

template <typename T>
T combined(Mode mode, T old, T update) {
  using U = std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type;
  switch (mode) {
    case Mode::kAdd:
      return static_cast<T>(static_cast<U>(old) + static_cast<U>(update));
    case Mode::kMul:
      return static_cast<T>(static_cast<U>(old) * static_cast<U>(update));
    case Mode::kMax:
      return old != old || old > update ? old : update;  // a NaN on either side stays: comparisons with NaN are false
    case Mode::kMin:
      return old != old || old < update ? old : update;
    case Mode::kUpdate:
      break;
  }
  return update;
}

// Combines an element with one update. The result is rounded, as if it were stored before the next update.
fp16 combined(Mode mode, fp16 old, fp16 update) { return to_fp16(combined(mode, to_float(old), to_float(update))); }

// Combines the tail of one update with the output, axis by axis.
template <typename T, Mode kMode>
void combine(std::byte* out, const std::byte* update, const CopyAxis* axes, int num_axes) {
  constexpr CopyAxis kOne{1, 0, 0};
  if (num_axes > 1) {
    for (int64_t i = 0; i < axes->extent; ++i)
      combine<T, kMode>(out + i * axes->out, update + i * axes->in, axes + 1, num_axes - 1);
    return;
  }
  const CopyAxis& line = num_axes ? *axes : kOne;
  const auto loop = [ out, update, n = line.extent ](int64_t in, int64_t to) __attribute__((always_inline)) {
    for (int64_t i = 0; i < n; ++i) {
      T* slot = reinterpret_cast<T*>(out + i * to);
      *slot = combined(kMode, *slot, *reinterpret_cast<const T*>(update + i * in));
    }
  };
  if (line.in == sizeof(T) && line.out == sizeof(T))
    loop(sizeof(T), sizeof(T));
  else
    loop(line.in, line.out);
}

using Combine = void (*)(std::byte* out, const std::byte* update, const CopyAxis* axes, int num_axes);

template <typename T>
Combine find_combine(Mode mode) {
  switch (mode) {
    case Mode::kAdd:
      return combine<T, Mode::kAdd>;
    case Mode::kMul:
      return combine<T, Mode::kMul>;
    case Mode::kMax:
      return combine<T, Mode::kMax>;
    case Mode::kMin:
      return combine<T, Mode::kMin>;
    case Mode::kUpdate:
      break;
  }
  return nullptr;  // mode "update" copies
}

Combine find_combine(Mode mode, DType dtype) {
  switch (dtype) {
    case DType::kFp32:
      return find_combine<float>(mode);
    case DType::kFp64:
      return find_combine<double>(mode);
    case DType::kFp16:
      return find_combine<fp16>(mode);
    case DType::kInt32:
      return find_combine<int32_t>(mode);
    default:
      return find_combine<int64_t>(mode);
  }
}

void run_scatter(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  const Tensor &data = call.inputs[0], &indices = call.inputs[1], &updates = call.inputs[2], &out = call.outputs[0];
  const auto& state = call.state<ScatterState>();
  if (out.size() == 0 && updates.size() == 0) return;
  Indexing piece = state.indexing;
  StridedCopy tail = state.tail;
  const bool copies = out.data != data.data;
  if (axis < 0) {
    if (copies) run_copy(state.copy, out.data, data.data);
  } else {
    if (copies)
      run_copy(plan_data(call, axis, range), out.data + range.begin * out.strides[axis],
               data.data + range.begin * data.strides[axis]);
    const int place = state.places[axis];
    if (state.roles[axis] == ScatterState::Role::kWalk) {
      Range& walked = piece.walk[place].range;
      walked = {std::min(range.begin, walked.end), std::min(range.end, walked.end)};
    } else if (state.roles[axis] == ScatterState::Role::kCoordinate) {
      piece.coordinates[place].accepted = range;
    } else {
      CopyAxis& cut = piece.tail[place];
      piece.tail_begin = range.begin * cut.in;
      piece.far_tail_begin = range.begin * cut.out;
      cut.extent = range.end - range.begin;
      tail = plan_copy(piece.tail, piece.num_tail, item_bytes(out));
    }
  }
  const Combine combine = find_combine(state.mode, out.dtype);
  walk(state.name, piece, indices.data, [&](int64_t near, int64_t far) {
    std::byte* to = out.data + far;
    const std::byte* from = updates.data + near;
    if (combine)
      combine(to, from, piece.tail, piece.num_tail);
    else
      tail.contiguous() ? copy_run(to, from, tail.unit) : run_copy(tail, to, from);
  });
}

Box scatter_needs(const Call& call, int input, const Box& out) {
  if (input == 0) return out;
  const auto& state = call.state<ScatterState>();
  const Tensor& operand = call.inputs[input];
  Box box = whole(operand);
  for (int i = 0; i < out.rank; ++i) {
    const bool tail = state.roles[i] == ScatterState::Role::kTail;
    if (state.roles[i] == ScatterState::Role::kCoordinate || (tail && input == 1)) continue;
    const int own = state.places[i] + (tail ? state.indexing.num_walk : 0);
    box[own] = {std::min(out[i].begin, operand.shape[own]), std::min(out[i].end, operand.shape[own])};
  }
  return box;
}

int64_t scatter_cost(const Call& call) {
  return 50 + call.outputs[0].size() * item_bytes(call.outputs[0]) / 8 + call.inputs[2].size() * 2;
}

// ---- write_slice ----

Prepared prepare_write_slice(const Call& call) {
  const Tensor &state = call.inputs[0], &update = call.inputs[1], &position = call.inputs[2], &out = call.outputs[0];
  check_written("write_slice", "state", state);
  check_operand("write_slice", "update", update);
  check_indices("write_slice", position);
  check_operand("write_slice", "output", out);
  check_same_shape("write_slice", out, state);
  if (!std::equal(out.strides, out.strides + out.rank, state.strides) || out.dtype != state.dtype)
    fail("write_slice", "output: got other strides or another dtype, need those of the state: the output is the state");
  if (update.dtype != state.dtype)
    fail("write_slice", "update dtype: got ", info(update.dtype).name, ", need ", info(state.dtype).name);
  if (position.size() != 1 || position.rank > 1)
    fail("write_slice", "position: got shape ", shape_text(position), ", need () or (1,)");
  const int axis = check_axis("write_slice", call.attributes<WriteSliceAttributes>().axis, state.rank);
  CopyAxis axes[8];
  for (int i = 0; i < state.rank; ++i) {
    if (update.rank != state.rank || (i == axis ? update.shape[i] > state.shape[i] : update.shape[i] != state.shape[i]))
      fail("write_slice", "update: got shape ", shape_text(update), " for ", shape_text(state),
           ", need the same extents, or fewer along axis ", axis);
    axes[i] = {update.shape[i], update.strides[i], state.strides[i]};
  }
  return std::make_shared<StridedCopy>(plan_copy(axes, state.rank, item_bytes(state)));
}

void run_write_slice(const Call& call, int, Range, std::byte*, const std::byte*) {
  const Tensor &state = call.inputs[0], &update = call.inputs[1], &position = call.inputs[2];
  const int axis = check_axis("write_slice", call.attributes<WriteSliceAttributes>().axis, state.rank);
  if (state.data != call.outputs[0].data) fail("write_slice", "output: got memory of its own, need that of the state");
  const int64_t at = read_index(position.data, position.dtype == DType::kInt64);
  const int64_t most = state.shape[axis] - update.shape[axis];
  if (at < 0 || at > most) fail("write_slice", "position: got ", at, ", need 0 to ", most);
  run_copy(call.state<StridedCopy>(), state.data + at * state.strides[axis], update.data);
}

int64_t write_slice_cost(const Call& call) { return 20 + call.inputs[1].size() * item_bytes(call.inputs[1]) / 8; }

template <class Attributes>
constexpr Kernel scatter_row(const char* name, const char* dtypes, const char* layout,
                             Prepared (*prepare)(const Call&)) {
  return {
      .name = name,
      .dtypes = dtypes,
      .attrs = layout,
      .attrs_bytes = sizeof(Attributes),
      .accepts = "strided",
      .prepare = prepare,
      .cuts = cut_lines,
      .needs = scatter_needs,
      .cost = scatter_cost,
      .run = run_scatter,
  };
}
#define HEXANE_SCATTERS(name, layout, Attributes, prepare)                  \
  scatter_row<Attributes>(name, "8b,int32,8b->8b", layout, prepare),        \
      scatter_row<Attributes>(name, "8b,int64,8b->8b", layout, prepare),    \
      scatter_row<Attributes>(name, "16b,int32,16b->16b", layout, prepare), \
      scatter_row<Attributes>(name, "16b,int64,16b->16b", layout, prepare), \
      scatter_row<Attributes>(name, "32b,int32,32b->32b", layout, prepare), \
      scatter_row<Attributes>(name, "32b,int64,32b->32b", layout, prepare), \
      scatter_row<Attributes>(name, "64b,int32,64b->64b", layout, prepare), \
      scatter_row<Attributes>(name, "64b,int64,64b->64b", layout, prepare)
constexpr Kernel write_slice(const char* dtypes) {
  return {
      .name = "write_slice",
      .dtypes = dtypes,
      .family = "any",
      .attrs = "axis:i",
      .attrs_bytes = sizeof(WriteSliceAttributes),
      .accepts = "strided",
      .prepare = prepare_write_slice,
      .cost = write_slice_cost,
      .run = run_write_slice,
  };
}

constexpr Kernel kTable[] = {
    HEXANE_SCATTERS("scatter_nd", "mode:s", ScatterNdAttributes, prepare_scatter_nd),
    HEXANE_SCATTERS("scatter_along_axis", "axis:i mode:s", ScatterAlongAxisAttributes, prepare_scatter_along_axis),
    write_slice("8b,8b,int32->8b"),
    write_slice("8b,8b,int64->8b"),
    write_slice("16b,16b,int32->16b"),
    write_slice("16b,16b,int64->16b"),
    write_slice("32b,32b,int32->32b"),
    write_slice("32b,32b,int64->32b"),
    write_slice("64b,64b,int32->64b"),
    write_slice("64b,64b,int64->64b"),
};

}  // namespace

std::span<const Kernel> scatter_table() { return kTable; }

}  // namespace hexane::cpu
