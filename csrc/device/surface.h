// Memory that the CPU and a device share: an IOSurface on Apple's systems, shared memory on other systems. A device
// ignores a surface's format and sees flat bytes, so a separate Layout places the elements.
//
//   write: packed elements -> rows of the surface        read: rows of the surface -> packed elements
//
//   a b c d e f    ->    a b c . . . . .        a layout in rows: every row of the innermost axis begins at a
//                        d e f . . . . .        multiple of row_alignment; the padding after a row stays zero
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/dtype.h"
#include "device/memory_surface.h"

namespace hexane::device {

// The places of a tensor's elements, counted from the first byte of the surface. Strides are in bytes; channels are
// axis 1.
struct Layout {
  DType dtype;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;

  // Throws Error unless elements have whole bytes, are aligned and do not overlap, rows are in order, and bytes() is
  // within the limit.
  void check() const;
  uint64_t bytes() const;  // bytes up to the end of the last row; 0 without elements
  int64_t item_bytes() const { return info(dtype).bits / 8; }
  bool operator==(const Layout&) const = default;
};

// Returns the layout whose innermost rows begin at multiples of this number of bytes, without other gaps. Throws
// Error as check() does.
Layout layout_in_rows(DType dtype, std::span<const int64_t> shape, int64_t row_alignment);

class Surface {
 public:
  explicit Surface(uint64_t bytes);  // zeroed; throws Error if memory is short
  ~Surface();
  Surface(const Surface&) = delete;
  Surface& operator=(const Surface&) = delete;

  std::byte* data() const { return data_; }  // this address never changes
  uint64_t bytes() const { return bytes_; }
  void* handle() const;  // the IOSurfaceRef; on other systems a hexane_memory_surface

  // The CPU locks a surface while it reads or writes it; a device runs on surfaces that are not locked. Locks nest.
  class Access {
   public:
    Access(const Surface& surface, bool read_only) : surface_(surface), read_only_(read_only) {
      surface_.lock(read_only_);
    }
    ~Access() { surface_.unlock(read_only_); }
    Access(const Access&) = delete;
    Access& operator=(const Access&) = delete;

   private:
    const Surface& surface_;
    const bool read_only_;
  };

 private:
  void lock(bool read_only) const;  // throws Error
  void unlock(bool read_only) const;

  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
#ifdef __APPLE__
  void* handle_ = nullptr;
#else
  mutable hexane_memory_surface memory_ = {};
#endif
};

// Copies channels [first, first + count) of the layout from or to packed elements of the layout's dtype, or of fp32 if
// that dtype is fp16. A layout of rank below 2 is one channel. Throws Error for channels or dtypes that the layout does
// not have, or if the surface is smaller than the layout.
struct Channels {
  int64_t first;
  int64_t count;
};
Channels all_channels(const Layout& layout);
void check_channels(const Layout& layout, Channels channels, DType dtype);
void write(const Surface& surface, const Layout& layout, Channels channels, DType dtype, const std::byte* packed);
void read(const Surface& surface, const Layout& layout, Channels channels, DType dtype, std::byte* packed);

}  // namespace hexane::device
