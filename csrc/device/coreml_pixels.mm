// fp16 memory that Core ML passes to the engine without a copy: an MLMultiArray over a pixel buffer of one half-float
// component with an IOSurface (Apple's documentation of -[MLMultiArray initWithPixelBuffer:shape:], macOS 12).
#include <dlfcn.h>

#import "device/coreml.h"

using namespace hexane::coreml;

namespace {

constexpr char kCoreVideo[] = "/System/Library/Frameworks/CoreVideo.framework/CoreVideo";
constexpr uint32_t kOneComponent16Half = 0x4C303068;  // 'L00h'
constexpr char kAdvice[] = "bind arrays of your own to all ports; Core ML copies them";

// CoreVideo's functions, by developer.apple.com/documentation/corevideo. Each CoreVideo function returns 0 on success.
struct CoreVideo {
  int32_t (*create)(const void* allocator, size_t width, size_t height, uint32_t format, id attributes, void** buffer);
  int32_t (*lock)(void* buffer, uint64_t flags);
  int32_t (*unlock)(void* buffer, uint64_t flags);
  void* (*base)(void* buffer);
  size_t (*row_bytes)(void* buffer);
  void (*release)(void* buffer);
  id* surface_key;
};

template <typename Function>
bool look_up(const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  return function != nullptr;
}

// Returns false if a function is missing.
bool find_core_video(const char* framework, CoreVideo& video) {
  if (!framework) dlopen(kCoreVideo, RTLD_NOW | RTLD_GLOBAL);
  return look_up("CVPixelBufferCreate", video.create) && look_up("CVPixelBufferLockBaseAddress", video.lock) &&
         look_up("CVPixelBufferUnlockBaseAddress", video.unlock) &&
         look_up("CVPixelBufferGetBaseAddress", video.base) &&
         look_up("CVPixelBufferGetBytesPerRow", video.row_bytes) && look_up("CVPixelBufferRelease", video.release) &&
         look_up("kCVPixelBufferIOSurfacePropertiesKey", video.surface_key);
}

}  // namespace

struct hexane_coreml_buffer {
  CoreVideo video;
  void* pixels = nullptr;
  id array = nil;
  void* data = nullptr;
  std::vector<int64_t> strides;  // Strides in elements.
  bool locked = false;           // Whether the pixels are locked for the CPU.
};

namespace hexane::coreml {

id array_in(const hexane_coreml_buffer& buffer) { return buffer.array; }

bool is_in(id array, const hexane_coreml_buffer& buffer) {
  if (array == buffer.array) return true;
  return [array respondsToSelector:@selector(pixelBuffer)] && [(id<CoreMLArray>)array pixelBuffer] == buffer.pixels;
}

void give_to_core_ml(hexane_coreml_buffer& buffer) {
  if (buffer.locked) buffer.video.unlock(buffer.pixels, 0);
  buffer.locked = false;
}

bool give_to_cpu(hexane_coreml_buffer& buffer) {
  if (!buffer.locked) buffer.locked = buffer.video.lock(buffer.pixels, 0) == 0;
  return buffer.locked && buffer.video.base(buffer.pixels) == buffer.data;
}

}  // namespace hexane::coreml

hexane_coreml_buffer* hexane_coreml_new_buffer(const char* framework, size_t rank, const int64_t* shape,
                                               hexane_ane_error* error) {
  if (!open_framework(framework, error)) return nullptr;
  auto* buffer = new hexane_coreml_buffer;
  const bool done = guarded(error, "buffer", [&] {
    Class arrays = class_of("MLMultiArray");
    if (![arrays instancesRespondToSelector:@selector(initWithPixelBuffer:shape:)] ||
        !find_core_video(framework, buffer->video)) {
      fail(error, "buffer", "an older system, need macOS 12 or later for memory that Core ML does not copy");
      advise(error, kAdvice);
      return false;
    }
    int64_t rows = 1;
    NSMutableArray* extents = [NSMutableArray array];
    for (size_t i = 0; i < rank; ++i) {
      [extents addObject:[NSNumber numberWithLongLong:shape[i]]];
      if (i + 1 < rank) rows *= shape[i];
    }
    if (rank == 0 || rows < 1 || shape[rank - 1] < 1)
      return fail(error, "buffer", "a shape without elements, need at least one");
    const CoreVideo& video = buffer->video;
    NSDictionary* attributes = [NSDictionary dictionaryWithObject:[NSDictionary dictionary] forKey:*video.surface_key];
    const int32_t status = video.create(nullptr, static_cast<size_t>(shape[rank - 1]), static_cast<size_t>(rows),
                                        kOneComponent16Half, attributes, &buffer->pixels);
    if (status != 0 || !buffer->pixels) {
      fail(error, "buffer", "no pixel buffer of %lld x %lld from CoreVideo (CVReturn %d)",
           static_cast<long long>(shape[rank - 1]), static_cast<long long>(rows), status);
      advise(error, kAdvice);
      return false;
    }
    id<CoreMLArray> made = [arrays alloc];
    buffer->array = [made initWithPixelBuffer:buffer->pixels shape:extents];
    if (!buffer->array) return fail(error, "buffer", "no array over a pixel buffer from Core ML");
    buffer->locked = video.lock(buffer->pixels, 0) == 0;
    if (!buffer->locked) return fail(error, "buffer", "a pixel buffer that CoreVideo does not lock");
    buffer->data = video.base(buffer->pixels);
    int64_t step = static_cast<int64_t>(video.row_bytes(buffer->pixels) / sizeof(uint16_t));
    buffer->strides.assign(rank, 1);
    for (size_t i = rank - 1; i-- > 0; step *= shape[i]) buffer->strides[i] = step;
    return true;
  });
  if (done) return buffer;
  hexane_coreml_free_buffer(buffer);
  return nullptr;
}

void* hexane_coreml_buffer_data(const hexane_coreml_buffer* buffer) { return buffer->data; }

const int64_t* hexane_coreml_buffer_strides(const hexane_coreml_buffer* buffer) { return buffer->strides.data(); }

void hexane_coreml_free_buffer(hexane_coreml_buffer* buffer) {
  if (!buffer) return;
  if (buffer->pixels) give_to_core_ml(*buffer);
  hexane_ane_error ignored;
  guarded(&ignored, "buffer", [&] {
    [buffer->array release];
    return true;
  });
  if (buffer->pixels) buffer->video.release(buffer->pixels);
  delete buffer;
}
