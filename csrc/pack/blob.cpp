#include "pack/blob.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <string>
#include <tuple>

#include "core/hash.h"

namespace hexane::blob {
namespace {

constexpr uint32_t kVersion = 2;
constexpr uint32_t kMagic = 0xDEADBEEF;
constexpr uint64_t kAlignment = 64;
constexpr size_t kBeginning = 256;  // bytes
constexpr char kWhere[] = "weights";

struct Header {
  uint32_t count = 0;
  uint32_t version = kVersion;
  std::array<uint64_t, 7> reserved{};
};
static_assert(sizeof(Header) == kAlignment);

struct Metadata {
  uint32_t magic = kMagic;
  uint32_t code = 0;
  uint64_t bytes = 0;
  uint64_t offset = 0;
  uint64_t padding_bits = 0;
  std::array<uint64_t, 4> reserved{};
};
static_assert(sizeof(Metadata) == kAlignment);

// The code of a dtype is its index in this list plus 1.
constexpr std::array kCodes = {
    DType::kFp16,   DType::kFp32,  DType::kUint8,  DType::kInt8,    DType::kBf16,    DType::kInt16,
    DType::kUint16, DType::kInt4,  DType::kUint1,  DType::kUint2,   DType::kUint4,   DType::kUint3,
    DType::kUint6,  DType::kInt32, DType::kUint32, DType::kFp8E4M3, DType::kFp8E5M2,
};

uint32_t code_of(DType dtype) {
  const auto* found = std::find(kCodes.begin(), kCodes.end(), dtype);
  if (found == kCodes.end())
    fail(kWhere, "got ", info(dtype).name, ", which a weight file cannot hold; need another dtype");
  return static_cast<uint32_t>(found - kCodes.begin()) + 1;
}

uint64_t round_up(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

uint64_t payload_bytes(const Array& array) {
  const auto bits = static_cast<uint64_t>(info(array.dtype).bits);
  return bits >= 8 ? array.elements.size() : (array.elements.size() * bits + 7) / 8;
}

void put(std::span<std::byte> file, uint64_t offset, const void* data, size_t size) {
  if (size) std::memcpy(file.subspan(offset, size).data(), data, size);
}

void pack(const Array& array, std::span<std::byte> out) {
  const int bits = info(array.dtype).bits;
  const uint32_t mask = (1u << bits) - 1;
  uint32_t held = 0;
  int num_held = 0;
  size_t at = 0;
  for (const std::byte element : array.elements) {
    const auto value = std::to_integer<uint32_t>(element);
    if (array.dtype == DType::kInt4) {
      const int number = static_cast<int8_t>(value);  // an int4 of -1 is 15 in ml_dtypes, and -1 in NumPy's int8
      if (number < -8 || number > 15) fail(kWhere, "got the element ", number, " of int4, need -8 to 7");
    } else if (value > mask) {
      fail(kWhere, "got the element ", value, " of ", info(array.dtype).name, ", need at most ", mask);
    }
    held |= (value & mask) << num_held;
    num_held += bits;
    if (num_held >= 8) {
      out[at++] = static_cast<std::byte>(held & 0xFF);
      held >>= 8;
      num_held -= 8;
    }
  }
  if (num_held) out[at] = static_cast<std::byte>(held);
}

}  // namespace

Layout lay_out(std::span<const Array> arrays) {
  // Only arrays with equal beginnings are hashed as a whole. Arrays with equal hashes are compared byte by byte.
  using Hash = std::array<uint64_t, 2>;
  struct Alike {
    size_t first = 0;
    std::map<Hash, std::vector<size_t>>
        hashed;  // Hashes of whole arrays. They are computed once two arrays begin alike.
  };
  std::map<std::tuple<DType, size_t, Hash>, Alike> known;
  Layout layout;
  layout.offsets.reserve(arrays.size());
  uint64_t end = sizeof(Header);
  for (size_t i = 0; i < arrays.size(); ++i) {
    const Array& array = arrays[i];
    code_of(array.dtype);
    const Bytes beginning = array.elements.first(std::min(array.elements.size(), kBeginning));
    const auto [place, is_new] =
        known.try_emplace({array.dtype, array.elements.size(), murmur3_128(beginning)}, Alike{i, {}});
    if (!is_new) {
      Alike& alike = place->second;
      if (alike.hashed.empty()) alike.hashed[murmur3_128(arrays[alike.first].elements)].push_back(alike.first);
      auto& equals = alike.hashed[murmur3_128(array.elements)];
      const auto equal = [&](size_t other) { return std::ranges::equal(arrays[other].elements, array.elements); };
      if (const auto same = std::ranges::find_if(equals, equal); same != equals.end()) {
        layout.offsets.push_back(layout.offsets[*same]);
        continue;
      }
      equals.push_back(i);
    }
    layout.stored.push_back(i);
    layout.offsets.push_back(round_up(end));
    end = layout.offsets.back() + sizeof(Metadata) + payload_bytes(array);
  }
  layout.bytes = layout.stored.empty() ? 0 : end;
  return layout;
}

Pieces::Pieces(std::span<const Array> arrays, const Layout& layout) {
  if (layout.stored.empty()) return;
  uint64_t between = sizeof(Header), packed = 0, end = sizeof(Header);
  for (const size_t i : layout.stored) {
    const uint64_t behind = layout.offsets[i] + sizeof(Metadata);
    between += behind - end;
    end = behind + payload_bytes(arrays[i]);
    if (info(arrays[i].dtype).bits < 8) packed += payload_bytes(arrays[i]);
  }
  between_.resize(between);
  packed_.resize(packed);
  bytes_.reserve(layout.stored.size() * 2);
  const Header header = {.count = static_cast<uint32_t>(layout.stored.size())};
  put(between_, 0, &header, sizeof(header));
  const std::span<std::byte> room(packed_);
  uint64_t first = 0, at = sizeof(Header), in_packed = 0;  // range of a piece between arrays; bytes packed so far
  end = sizeof(Header);
  for (const size_t i : layout.stored) {
    const Array& array = arrays[i];
    const uint64_t bytes = payload_bytes(array);
    const auto bits = static_cast<uint64_t>(info(array.dtype).bits);
    const uint64_t used = bits >= 8 ? bytes * 8 : array.elements.size() * bits;
    const Metadata metadata = {.code = code_of(array.dtype),
                               .bytes = bytes,
                               .offset = layout.offsets[i] + sizeof(Metadata),
                               .padding_bits = bytes * 8 - used};
    at += layout.offsets[i] - end;
    put(between_, at, &metadata, sizeof(metadata));
    at += sizeof(metadata);
    end = metadata.offset + bytes;
    bytes_.push_back(Bytes(between_).subspan(first, at - first));
    first = at;
    if (bits < 8) {
      pack(array, room.subspan(in_packed, bytes));
      bytes_.push_back(room.subspan(in_packed, bytes));
      in_packed += bytes;
    } else {
      bytes_.push_back(array.elements);
    }
  }
}

Blob read(Bytes file, uint64_t offset) {
  const auto header = hexane::read<Header>(kWhere, file, 0);
  if (header.version != kVersion) fail(kWhere, "got a file of version ", header.version, ", need ", kVersion);
  if (offset < sizeof(Header))
    fail(kWhere, "got metadata at ", offset, ", need it after the file's header of 64 bytes");
  check_range(kWhere, "metadata", offset, sizeof(Metadata), file.size());
  const auto metadata = hexane::read<Metadata>(kWhere, file, offset);
  if (metadata.magic != kMagic) fail(kWhere, "got no metadata at ", offset, ", need the word 0xDEADBEEF there");
  if (metadata.code < 1 || metadata.code > kCodes.size())
    fail(kWhere, "got the dtype code ", metadata.code, " at ", offset, ", need one of 1 to ", kCodes.size());
  check_range(kWhere, "payload", metadata.offset, metadata.bytes, file.size());
  const uint64_t behind = offset + sizeof(Metadata);
  if (metadata.offset < sizeof(Header) || (metadata.offset < behind && metadata.offset + metadata.bytes > offset))
    fail(kWhere, "got a payload at ", metadata.offset, " for the metadata at ", offset,
         ", need one outside both headers");
  const DType dtype = kCodes[metadata.code - 1];
  const auto bits = static_cast<uint64_t>(info(dtype).bits);
  const uint64_t padding = metadata.padding_bits;
  const bool fits = bits >= 8 ? padding == 0 : padding < 8 && padding <= metadata.bytes * 8;
  if (!fits || (metadata.bytes * 8 - padding) % bits)
    fail(kWhere, "got ", metadata.bytes, " bytes with ", padding, " padding bits at ", offset,
         ", need whole elements of ", info(dtype).name);
  return {.dtype = dtype,
          .count = (metadata.bytes * 8 - padding) / bits,
          .payload = file.subspan(metadata.offset, metadata.bytes)};
}

void unpack(const Blob& blob, std::span<std::byte> elements) {
  const int bits = info(blob.dtype).bits;
  if (bits >= 8) {
    put(elements, 0, blob.payload.data(), blob.payload.size());
    return;
  }
  const uint32_t mask = (1u << bits) - 1;
  uint32_t held = 0;
  int num_held = 0;
  size_t at = 0;
  for (std::byte& element : elements) {
    if (num_held < bits) {
      held |= std::to_integer<uint32_t>(blob.payload[at++]) << num_held;
      num_held += 8;
    }
    uint32_t value = held & mask;
    if (blob.dtype == DType::kInt4 && value & 8) value |= 0xF0;
    element = static_cast<std::byte>(value);
    held >>= bits;
    num_held -= bits;
  }
}

}  // namespace hexane::blob
