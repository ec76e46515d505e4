#include "plan/writer.h"

#include <algorithm>
#include <map>

#include "core/hash.h"

namespace hexane::plan {
namespace {

constexpr std::byte kZeros[size_t{16} << 10] = {};
static_assert(sizeof(kZeros) >= PLAN_ALIGNMENT);

uint64_t aligned(uint64_t offset) { return (offset + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT; }

std::vector<Piece> checked_pieces(const Sections& sections, Section section) {
  std::vector<Piece> pieces = pieces_of(sections, section);
  uint64_t end = 0;
  for (const Piece& piece : pieces) {
    if (piece.offset < end || piece.offset > kMaxBytes || piece.bytes.size() > kMaxBytes - piece.offset)
      fail("plan", kSectionInfo[section].name, ": got ", piece.bytes.size(), " bytes at ", piece.offset,
           ", need pieces one after the other");
    end = piece.offset + piece.bytes.size();
  }
  return pieces;
}

// Returns the tensors as rows of a file. Appends each distinct record of rank, extents and strides to `dims` once.
std::vector<PlanTensorRow> without_dims(std::span<const PlanTensor> tensors, std::vector<int64_t>& dims) {
  std::map<std::vector<int64_t>, size_t> places;
  std::vector<PlanTensorRow> result;
  for (const PlanTensor& tensor : tensors) {
    const std::string where = "plan: tensors[" + std::to_string(result.size()) + "]";
    if (tensor.rank > PLAN_MAX_RANK) fail(where, "rank: got ", tensor.rank, ", need at most ", PLAN_MAX_RANK);
    for (uint32_t axis = tensor.rank; axis < PLAN_MAX_RANK; ++axis)
      if (tensor.shape[axis] || tensor.strides[axis]) fail(where, "axis ", axis, " is beyond the rank and not zero");
    std::vector<int64_t> record{tensor.rank};
    record.insert(record.end(), tensor.shape, tensor.shape + tensor.rank);
    record.insert(record.end(), tensor.strides, tensor.strides + tensor.rank);
    const auto [place, is_new] = places.try_emplace(record, dims.size());
    if (is_new) dims.insert(dims.end(), record.begin(), record.end());
    if (place->second > UINT32_MAX) fail(where, "dims: got too many");
    result.push_back({tensor.name, tensor.dtype, tensor.layout, tensor.space, tensor.offset, tensor.ring,
                      static_cast<uint32_t>(place->second)});
  }
  return result;
}

}  // namespace

PlanFile::PlanFile(const Sections& sections) : head_(sizeof(PlanHeader) + kFileSections * sizeof(PlanSection)) {
  for (size_t i = 0; i < kSections; ++i)
    if (sections[i].size() % kSectionInfo[i].row_bytes)
      fail("plan", kSectionInfo[i].name, ": got ", sections[i].size(), " bytes, need a multiple of ",
           kSectionInfo[i].row_bytes);
  tensors_ = without_dims(rows<PlanTensor>("plan: tensors", sections[kTensors]), dims_);
  const auto contents = [&](size_t number) -> Bytes {
    if (number == kTensors) return std::as_bytes(std::span(tensors_));
    if (number == kTensors + 1) return std::as_bytes(std::span(dims_));
    return sections[number < kTensors ? number : number - 1];
  };
  const std::vector<Piece> state = checked_pieces(sections, kState), weights = checked_pieces(sections, kWeights);
  const auto fill = [&](uint64_t count) {
    for (; count > 0; count -= pieces_.back().size())
      pieces_.push_back(Bytes(kZeros).first(std::min<uint64_t>(count, sizeof(kZeros))));
  };
  pieces_.push_back(head_);
  size_ = head_.size();
  for (size_t i = 0; i < kFileSections; ++i) {
    const SectionInfo info = file_section(static_cast<int>(i));
    PlanSection section{{}, aligned(size_), contents(i).size(), info.row_bytes};
    const bool is_state = info.name == kSectionInfo[kState].name;
    const bool in_pieces = is_state || info.name == kSectionInfo[kWeights].name;
    const std::span<const Piece> pieces = is_state ? state : weights;
    if (in_pieces) section.bytes = end_of(pieces);
    std::copy(info.name.begin(), info.name.end(), section.name);
    std::memcpy(&head_[sizeof(PlanHeader) + i * sizeof(PlanSection)], &section, sizeof(section));
    fill(section.offset - size_);
    if (!in_pieces) pieces_.push_back(contents(i));
    for (uint64_t end = 0; const Piece& piece : in_pieces ? pieces : std::span<const Piece>()) {
      fill(piece.offset - end);
      pieces_.push_back(piece.bytes);
      end = piece.offset + piece.bytes.size();
    }
    size_ = section.offset + section.bytes;
  }
  PlanHeader header{{}, PLAN_VERSION, kFileSections, size_, 0};
  std::memcpy(header.magic, PLAN_MAGIC, sizeof(header.magic));
  std::memcpy(head_.data(), &header, sizeof(header));
  Xxh64 checksum;
  checksum.update(Bytes(head_).subspan(offsetof(PlanHeader, checksum) + sizeof(header.checksum)));
  for (const Bytes piece : std::span(pieces_).subspan(1)) checksum.update(piece);
  header.checksum = checksum.digest();
  std::memcpy(head_.data(), &header, sizeof(header));
}

}  // namespace hexane::plan
