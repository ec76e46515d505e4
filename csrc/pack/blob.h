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
// Elements smaller than a byte lie one behind the other, low bits first, and may cross bytes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/bytes.h"
#include "core/dtype.h"

namespace hexane::blob {

// Elements of whole bytes as they are; of smaller dtypes a byte each, which has the value. The upper half of a negative
// int4 has its sign or zeros.
struct Array {
  DType dtype = DType::kFp16;
  Bytes elements;
};

// Where arrays lie in a file: equal ones (dtype and bits) once.
struct Layout {
  std::vector<uint64_t> offsets;  // of the metadata of each array
  std::vector<size_t> stored;     // the arrays that the file holds, in order
  uint64_t bytes = 0;             // of the file; 0 where there is no array
};

// Takes time linear in the bytes of the arrays. Throws Error for a dtype that such files do not have.
Layout lay_out(std::span<const Array> arrays);

// The file of this layout in pieces, in order: the elements, where they lie in memory, and the bytes between them.
// Elements smaller than a byte are packed into memory of their own.
class Pieces {
 public:
  // Throws Error for an element whose value its dtype does not have.
  Pieces(std::span<const Array> arrays, const Layout& layout);
  std::span<const Bytes> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> between_;  // the header, then for each array zeros up to its metadata, and that
  std::vector<std::byte> packed_;
  std::vector<Bytes> bytes_;
};

struct Blob {
  DType dtype = DType::kFp16;
  uint64_t count = 0;  // of elements
  Bytes payload;
};

// The blob whose metadata lies at `offset`. Throws Error for any other layout. In files of other writers metadata and
// payloads may begin anywhere after the header, as long as they do not overlap.
Blob read(Bytes file, uint64_t offset);

// The elements of a blob. Elements below 8 bits take a byte each; int4 keeps its sign.
void unpack(const Blob& blob, std::span<std::byte> elements);

}  // namespace hexane::blob
