// Checks the weight files as the engine's compiler reads them, without the project's own reader: the metadata of a blob
// is 64 bytes at the offset that the text gives (u32 0xdeadbeef, u32 dtype, u64 payload bytes, u64 payload offset, u64
// padding bits), the file begins with u32 count and u32 version 2.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <string>

#include "program.h"

namespace {

struct Blob {
  uint32_t sentinel, dtype;
  uint64_t bytes, offset, padding_bits, reserved[4];
};
static_assert(sizeof(Blob) == 64);

struct Element {
  uint32_t code;
  uint64_t bits;
};
const std::map<std::string, Element> kElements = {
    {"fp16", {1, 16}},  {"fp32", {2, 32}},   {"uint8", {3, 8}},  {"int8", {4, 8}},    {"bf16", {5, 16}},
    {"int16", {6, 16}}, {"uint16", {7, 16}}, {"int4", {8, 4}},   {"uint1", {9, 1}},   {"uint2", {10, 2}},
    {"uint4", {11, 4}}, {"uint3", {12, 3}},  {"uint6", {13, 6}}, {"int32", {14, 32}}, {"uint32", {15, 32}},
};

// The reason to refuse the constant, or "".
std::string check(const std::string& file, const std::string& dtype, const std::string& shape, uint64_t offset) {
  const auto element = kElements.find(dtype);
  if (element == kElements.end()) return "no blob has the dtype " + dtype;
  uint64_t bits = element->second.bits;
  const std::regex number("[0-9]+");
  for (std::sregex_iterator at(shape.begin(), shape.end(), number), end; at != end; ++at)
    bits *= std::stoull(at->str());
  uint32_t version = 0;
  Blob blob;
  if (file.size() < 64) return "the file has no header";
  std::memcpy(&version, file.data() + 4, sizeof version);
  if (version != 2) return "the version is not 2";
  if (offset % 64 || offset < 64 || offset > file.size() - sizeof blob) return "no metadata can lie there";
  std::memcpy(&blob, file.data() + offset, sizeof blob);
  if (blob.sentinel != 0xdeadbeef) return "there is no sentinel";
  if (blob.dtype != element->second.code) return "the blob has another dtype";
  if (blob.bytes != (bits + 7) / 8) return "the blob has " + std::to_string(blob.bytes) + " bytes";
  if (blob.padding_bits != blob.bytes * 8 - bits) return "the padding bits are wrong";
  if (blob.offset % 64 || blob.offset < offset + 64 || blob.offset > file.size() ||
      blob.bytes > file.size() - blob.offset)
    return "the payload is out of bounds";
  return "";
}

}  // namespace

bool fake_check_blobs(const char* folder, const char* mil, size_t mil_bytes, char* why, size_t why_bytes) {
  static const std::regex constant(
      R"re(tensor<(\w+), \[([0-9, ]*)\]>\(BLOBFILE\(path = string\("([^"]*)"\), offset = uint64\(([0-9]+)\)\)\))re");
  const std::string text(mil, mil_bytes), prefix = "@model_path/", word = "BLOBFILE";
  size_t num_words = 0, num_constants = 0;
  for (size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) ++num_words;
  std::map<std::string, std::string> files;
  for (std::sregex_iterator at(text.begin(), text.end(), constant), end; at != end; ++at, ++num_constants) {
    const std::string path = (*at)[3];
    if (path.rfind(prefix, 0) != 0)
      return std::snprintf(why, why_bytes, "%s: no path of the model", path.c_str()), false;
    if (!files.count(path)) {
      std::ifstream file(std::string(folder) + "/" + path.substr(prefix.size()), std::ios::binary);
      files[path].assign(std::istreambuf_iterator<char>(file), {});
    }
    const std::string reason = check(files[path], (*at)[1], (*at)[2], std::stoull((*at)[4]));
    if (reason.empty()) continue;
    std::snprintf(why, why_bytes, "%s at %s: %s", path.c_str(), (*at)[4].str().c_str(), reason.c_str());
    return false;
  }
  if (num_words == num_constants) return true;
  std::snprintf(why, why_bytes, "%zu BLOBFILE of another form", num_words - num_constants);
  return false;
}

bool fake_check_spelling(const char* mil, size_t mil_bytes) {
  const std::string text(mil, mil_bytes), op = "= constexpr_affine_dequantize(", whole = op + ")[";
  for (size_t at = text.find(op); at != text.npos; at = text.find(op, at + 1))
    if (text.compare(at, whole.size(), whole) != 0) return false;
  return true;
}
