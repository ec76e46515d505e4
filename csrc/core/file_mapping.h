// A regular file mapped into memory, for weights that a model reads as they are stored.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <span>
#include <string>

#include "core/bytes.h"

namespace hexane {

class FileMapping {
 public:
  // Maps the open file. Later writes to the file change the bytes. Reading bytes that the file no longer has raises
  // SIGBUS. Returns null if the file system cannot map it. `where` starts messages.
  static std::shared_ptr<FileMapping> map(int descriptor, std::string where);
  // Returns the mapping that contains this address, or null.
  static std::shared_ptr<FileMapping> at(const void* address);
  FileMapping(const FileMapping&) = delete;
  FileMapping& operator=(const FileMapping&) = delete;
  ~FileMapping();

  Bytes bytes() const { return {data_, size_}; }
  // Copies the file's bytes from `begin` on, without touching the mapping. Throws Error if the file no longer has them.
  void read(uint64_t begin, std::span<std::byte> to) const;
  // Gives back the memory of the pages with these bytes. The next access reads them from the file again.
  void release(Bytes bytes) const;
  // Throws Error if the file's size or modification time differs from those at map().
  void check_unchanged() const;

 private:
  FileMapping() = default;

  std::string where_;
  const std::byte* data_ = nullptr;
  uint64_t size_ = 0;
  std::timespec modified_ = {};
  int descriptor_ = -1;
};

}  // namespace hexane
