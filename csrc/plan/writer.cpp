#include "plan/writer.h"

#include <algorithm>

#include "core/hash.h"

namespace hexane::plan {
namespace {

constexpr std::byte kZeros[PLAN_ALIGNMENT] = {};

uint64_t aligned(uint64_t offset) { return (offset + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT; }

}  // namespace

PlanFile::PlanFile(const Sections& sections) : head_(sizeof(PlanHeader) + kSections * sizeof(PlanSection)) {
  pieces_.push_back(head_);
  size_ = head_.size();
  for (size_t i = 0; i < kSections; ++i) {
    const SectionInfo& info = kSectionInfo[i];
    if (sections[i].size() % info.row_bytes)
      fail("plan", info.name, ": got ", sections[i].size(), " bytes, need a multiple of ", info.row_bytes);
    PlanSection section{{}, aligned(size_), sections[i].size(), info.row_bytes};
    std::copy(info.name.begin(), info.name.end(), section.name);
    std::memcpy(&head_[sizeof(PlanHeader) + i * sizeof(PlanSection)], &section, sizeof(section));
    pieces_.push_back(Bytes(kZeros).first(section.offset - size_));
    pieces_.push_back(sections[i]);
    size_ = section.offset + section.bytes;
  }
  PlanHeader header{{}, PLAN_VERSION, kSections, size_, 0};
  std::memcpy(header.magic, PLAN_MAGIC, sizeof(header.magic));
  std::memcpy(head_.data(), &header, sizeof(header));
  Xxh64 checksum;
  checksum.update(Bytes(head_).subspan(offsetof(PlanHeader, checksum) + sizeof(header.checksum)));
  for (const Bytes piece : std::span(pieces_).subspan(1)) checksum.update(piece);
  header.checksum = checksum.digest();
  std::memcpy(head_.data(), &header, sizeof(header));
}

}  // namespace hexane::plan
