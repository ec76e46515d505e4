// Weights with fewer bits.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "bind/new_array.h"
#include "bind/register.h"
#include "core/error.h"
#include "pack/blocks.h"
#include "pack/grouped_palettes.h"
#include "pack/quantise.h"
#include "pack/vectors.h"

namespace py = pybind11;

namespace hexane {
namespace {

using Floats = py::array_t<float, py::array::c_style>;
using Doubles = py::array_t<double, py::array::c_style>;
using Halves = py::array_t<uint16_t, py::array::c_style>;

std::span<const fp16> halves(const Halves& bits) {
  return {reinterpret_cast<const fp16*>(bits.data()), static_cast<size_t>(bits.size())};
}

py::tuple quantise_int8(const Floats& weights, int64_t outer, int64_t channels, int64_t inner) {
  const pack::Channels shape{.outer = outer, .channels = channels, .inner = inner};
  auto integers = new_array<int8_t>(static_cast<uint64_t>(weights.size()));
  py::array_t<float> scales(std::max<int64_t>(channels, 0));
  {
    const std::span from(weights.data(), static_cast<size_t>(weights.size()));
    const std::span to(integers.mutable_data(), static_cast<size_t>(integers.size()));
    const std::span found(scales.mutable_data(), static_cast<size_t>(scales.size()));
    const py::gil_scoped_release release;
    pack::quantise_int8(from, shape, to, found);
  }
  return py::make_tuple(integers, scales);
}

py::tuple quantise_palette(const Halves& bits, int index_bits, int less) {
  py::array_t<int32_t> indices(bits.size());
  std::vector<fp16> entries;
  double error = 0;
  {
    const std::span<const fp16> weights = halves(bits);
    const std::span to(indices.mutable_data(), static_cast<size_t>(indices.size()));
    const py::gil_scoped_release release;
    entries = pack::palette_entries(weights, index_bits, less);
    error = pack::palette_indices(weights, entries, to);
  }
  Halves table(static_cast<py::ssize_t>(entries.size()));
  std::memcpy(table.mutable_data(), entries.data(), entries.size() * sizeof(fp16));
  return py::make_tuple(table, indices, error);
}

py::tuple quantise_groups(const Halves& bits, int64_t outer, int64_t groups, int index_bits, int threads) {
  if (outer < 1 || groups < 1 || bits.size() % (outer * groups) != 0 || index_bits < 1 || index_bits > 8)
    fail("quantise", "got ", bits.size(), " weights in ", outer, " x ", groups, " parts of ", index_bits,
         " bits, need equal parts and 1 to 8 bits");
  const pack::Groups shape{.outer = outer, .groups = groups, .inner = bits.size() / (outer * groups)};
  Halves entries({static_cast<py::ssize_t>(groups), py::ssize_t{1} << index_bits});
  py::array_t<uint8_t> indices(bits.size());
  {
    const std::span to(indices.mutable_data(), static_cast<size_t>(indices.size()));
    const std::span<fp16> tables(reinterpret_cast<fp16*>(entries.mutable_data()), static_cast<size_t>(entries.size()));
    const std::span<const fp16> weights = halves(bits);
    const py::gil_scoped_release release;
    pack::palette_groups(weights, shape, index_bits, threads, tables, to);
  }
  return py::make_tuple(entries, indices);
}

py::tuple quantise_vectors(const Halves& bits, int64_t outer, int64_t vectors, int64_t size, int index_bits,
                           int threads) {
  if (outer < 1 || vectors < 1 || size < 1 || bits.size() % (outer * vectors * size) != 0 || index_bits < 1 ||
      index_bits > 8)
    fail("quantise", "got ", bits.size(), " weights in ", outer, " x ", vectors, " vectors of ", size, ", ", index_bits,
         " bits, need equal parts and 1 to 8 bits");
  const pack::Vectors shape{
      .outer = outer, .vectors = vectors, .size = size, .inner = bits.size() / (outer * vectors * size)};
  Halves entries({py::ssize_t{1} << index_bits, static_cast<py::ssize_t>(size)});
  py::array_t<uint8_t> indices(bits.size() / size);
  double error = 0;
  {
    const std::span to(indices.mutable_data(), static_cast<size_t>(indices.size()));
    const std::span<fp16> table(reinterpret_cast<fp16*>(entries.mutable_data()), static_cast<size_t>(entries.size()));
    const std::span<const fp16> weights = halves(bits);
    const py::gil_scoped_release release;
    error = pack::palette_vectors(weights, shape, index_bits, threads, table, to);
  }
  return py::make_tuple(entries, indices, error);
}

py::tuple quantise_blocks(const Floats& weights, int64_t blocks, int bits, int threads,
                          const std::optional<Doubles>& importance) {
  if (importance && (importance->ndim() != 2 || importance->size() == 0))
    fail("quantise", "importance: got ", importance->size(), " numbers in ", importance->ndim(),
         " axes, need [rows][channels of a block]");
  if (blocks < 1) fail("quantise", "got ", weights.size(), " weights in ", blocks, " blocks, need blocks of one size");
  auto integers = new_array<int8_t>(static_cast<uint64_t>(weights.size()));
  py::array_t<float> scales(blocks);
  {
    const std::span from(weights.data(), static_cast<size_t>(weights.size()));
    const std::span to(integers.mutable_data(), static_cast<size_t>(integers.size()));
    const std::span found(scales.mutable_data(), static_cast<size_t>(scales.size()));
    pack::Importance counts;
    if (importance)
      counts = {.channels = {importance->data(), static_cast<size_t>(importance->size())},
                .rows = static_cast<size_t>(importance->shape(0))};
    const py::gil_scoped_release release;
    pack::quantise_blocks(from, counts, bits, threads, to, found);
  }
  return py::make_tuple(integers, scales);
}

}  // namespace

void register_quantise(py::module_& m) {
  m.def("quantise_int8", &quantise_int8, py::arg("weights").noconvert(), py::arg("outer"), py::arg("channels"),
        py::arg("inner"),
        "Integers and a scale for each channel of [outer][channels][inner] float32 weights; the integers are flat.");
  m.def("quantise_palette", &quantise_palette, py::arg("halves").noconvert(), py::arg("bits"), py::arg("less") = 0,
        "The best palette of the weights, whose fp16 bits are given as uint16: (entries as fp16 bits, flat int32 "
        "indices, sum of squared distances).");
  m.def(
      "quantise_groups", &quantise_groups, py::arg("halves").noconvert(), py::arg("outer"), py::arg("groups"),
      py::arg("bits"), py::arg("threads"),
      "A palette for each group of [outer][groups][inner] weights: (entries [groups][2^bits] as fp16 bits, flat uint8 "
      "indices).");
  m.def("quantise_vectors", &quantise_vectors, py::arg("halves").noconvert(), py::arg("outer"), py::arg("vectors"),
        py::arg("size"), py::arg("bits"), py::arg("threads"),
        "A palette of vectors for [outer][vectors][size][inner] weights: (entries [2^bits][size] as fp16 bits, flat "
        "uint8 indices [outer][vectors][inner], sum of squared distances). size: 2 or 4.");
  m.def("quantise_blocks", &quantise_blocks, py::arg("weights").noconvert(), py::arg("blocks"), py::arg("bits"),
        py::arg("threads"), py::arg("importance") = py::none(),
        "Integers of 4 or 8 bits and a scale for each block of float32 weights, which lie one after the other: (flat "
        "int8 integers, float32 scales). importance [rows][channels of a block]: how much errors count.");
}

}  // namespace hexane
