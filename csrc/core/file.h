// Whole files: read by mapping, written atomically.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "core/bytes.h"

namespace hexane {

// A file mapped read-only; its bytes start at a page.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  Bytes bytes() const { return bytes_; }

 private:
  Bytes bytes_;
};

// Writes the pieces one after the other to a temporary file beside `path`, syncs it and renames it to `path`. Whatever
// goes wrong, also the end of the process, the old file stays as it was; on an error the temporary file is removed.
void save_file(const std::string& path, std::span<const Bytes> pieces);

}  // namespace hexane
