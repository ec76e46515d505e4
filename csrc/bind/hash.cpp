// Hashes of buffers.
#include "core/hash.h"

#include "bind/arrays.h"
#include "bind/register.h"

namespace py = pybind11;

namespace hexane {
namespace {

constexpr size_t kLong = 1 << 20;  // a hash of this many bytes may take 100 us

template <typename Hash>
auto without_gil_if_long(Bytes bytes, Hash hash) {
  if (bytes.size() < kLong) return hash(bytes);
  const py::gil_scoped_release release;
  return hash(bytes);
}

}  // namespace

void register_hash(py::module_& m) {
  m.def(
      "hash128",
      [](py::handle data) {
        const HeldBytes held("hash128", data);
        const auto hash = without_gil_if_long(held.bytes(), [](Bytes bytes) { return murmur3_128(bytes); });
        return py::bytes(reinterpret_cast<const char*>(hash.data()), sizeof(hash));
      },
      py::arg("data"));
  m.def(
      "xxh64",
      [](py::handle data, uint64_t seed) {
        const HeldBytes held("xxh64", data);
        return without_gil_if_long(held.bytes(), [seed](Bytes bytes) { return xxh64(bytes, seed); });
      },
      py::arg("data"), py::arg("seed") = 0);
}

}  // namespace hexane
