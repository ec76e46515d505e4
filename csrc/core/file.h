// Whole files: read into memory, written atomically.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "core/bytes.h"
#include "core/memory.h"

namespace hexane {

// Returns the contents of a regular file. The contents are copied, not mapped: later changes of the file have no
// effect, while access to a mapping of a truncated file raises a signal. The first `head` bytes (or all, of a shorter
// file) are passed to `check` before the other bytes are read.
Memory read_file(const std::string& path, size_t head, const std::function<void(Bytes)>& check);

// Writes the pieces one after the other to `path`.part, syncs it and renames it to `path`. After any failure, even a
// crash of the process, the old file is unchanged. The next save to that path removes the remains of a killed process.
// Saves to one path wait for each other. If `path` is a link, the file at its end is replaced. Only regular files are
// accepted. Without `sync` a save does not wait for the disk: a loss of power soon afterwards may leave a truncated
// file.
void save_file(const std::string& path, std::span<const Bytes> pieces, bool sync = true);

// True if a regular file has exactly these pieces in this order.
bool file_has(const std::string& path, std::span<const Bytes> pieces);

// Exchanges two folders atomically. Returns false if the system or the file system cannot exchange folders.
bool exchange_folders(const std::string& one, const std::string& other);

}  // namespace hexane
