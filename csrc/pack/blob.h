// MIL's weight file, BlobStorage version 2: the target of BLOBFILE(path, offset) in the text of a program.
//
//    0           64           128             a multiple of 64
//    | header    | metadata   | payload ... | metadata | payload ...
//      u32 count   u32 0xDEADBEEF             `offset` in the text leads to the metadata
//      u32 2       u32 dtype code
//                  u64 payload bytes
//                  u64 payload offset, from the start of the file
//                  u64 padding bits: the unused ones at the end, for elements smaller than a byte
//
// Elements smaller than a byte are packed without gaps, low bits first, and may cross byte boundaries.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/bytes.h"
#include "core/dtype.h"

namespace hexane::blob {

// An array in memory. Elements smaller than a byte take a byte each. The upper four bits of a negative int4 are either
// its sign or zeros.
struct Array {
  DType dtype = DType::kFp16;
  Bytes elements;
};

// The places of arrays in a file. Arrays with equal dtype and bits are stored once.
struct Layout {
  std::vector<uint64_t> offsets;  // Offset of each array's metadata.
  std::vector<size_t> stored;     // Indices of the arrays that are stored, in the order of the file.
  uint64_t bytes = 0;             // Size of the file; 0 without arrays.
};

// Plans a file, in time linear in the bytes of the arrays. Throws Error for a dtype that has no code in the format.
Layout lay_out(std::span<const Array> arrays);

// The pieces of a file in order: the elements of arrays, in place, and the bytes between them. Elements smaller than a
// byte are packed into memory of this object.
class Pieces {
 public:
  // Throws Error if an element's value is outside of its dtype.
  Pieces(std::span<const Array> arrays, const Layout& layout);
  std::span<const Bytes> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> between_;  // the header, then for each array zeros up to its metadata, and its metadata
  std::vector<std::byte> packed_;
  std::vector<Bytes> bytes_;
};

struct Blob {
  DType dtype = DType::kFp16;
  uint64_t count = 0;  // number of elements
  Bytes payload;
};

// Reads the blob with metadata at `offset`. Throws Error if the file is not in this format. Metadata and payloads need
// no alignment, since other writers do not align them, but must not overlap.
Blob read(Bytes file, uint64_t offset);

// Unpacks the elements of a blob. Elements below 8 bits take a byte each; int4 is sign-extended.
void unpack(const Blob& blob, std::span<std::byte> elements);

}  // namespace hexane::blob
