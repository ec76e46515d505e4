// Requests: a loaded program's ports on surfaces. A request is built once; an evaluation sends one message.
#include <algorithm>
#include <cstring>
#include <vector>

#import "device/ane.h"

using namespace hexane::ane;

using Evaluate = bool (*)(id, SEL, unsigned int, NSDictionary*, id, NSError**);

struct hexane_ane_request {
  hexane_ane_program* program;
  uint64_t load;                // Number of the program's load that the request belongs to.
  std::vector<void*> surfaces;  // One surface for each port.
  bool owns_surfaces;
  id request = nil;
  NSDictionary* options = nil;
  SEL selector = nullptr;
  Evaluate evaluate = nullptr;
};

namespace {

bool take_surfaces(hexane_ane_request* request, void* const* given, hexane_ane_error* error) {
  const hexane_ane& ane = request->program->ane;
  const Ports& ports = request->program->ports;
  uint64_t side_bytes[2] = {ane.setup.least_surface_bytes, ane.setup.least_surface_bytes};
  for (size_t i = 0; i < ports.size(); ++i) {
    uint64_t& most = side_bytes[i >= ports.num_inputs];
    most = std::max(most, ports.all[i].seen.bytes);
  }
  for (size_t i = 0; i < ports.size(); ++i) {
    const hexane_ane_port& port = ports.all[i].seen;
    void* surface = given ? given[i] : ane.surfaces.create(side_bytes[i >= ports.num_inputs]);
    const size_t need = port.bytes;
    if (!surface) return fail(error, "bind", "port %s: got no surface, need one of %zu bytes", port.name, need);
    request->surfaces.push_back(surface);
    const size_t bytes = ane.surfaces.bytes(surface);
    if (bytes < need)
      return fail(error, "bind", "port %s: got a surface of %zu bytes, need %zu", port.name, bytes, need);
  }
  return true;
}

bool build(hexane_ane_request* request, hexane_ane_error* error) {
  const hexane_ane_program* program = request->program;
  NSMutableArray* surfaces[2] = {[NSMutableArray array], [NSMutableArray array]};
  NSMutableArray* symbols[2] = {[NSMutableArray array], [NSMutableArray array]};
  for (size_t i = 0; i < program->ports.size(); ++i) {
    const bool is_output = i >= program->ports.num_inputs;
    id surface = [(id<AneSurfaceClass>)program->ane.classes[kSurface]
        objectWithIOSurface:static_cast<__IOSurface*>(request->surfaces[i])];
    if (!surface) return fail(error, "bind", "the framework takes no surface for %s", program->ports.all[i].seen.name);
    [surfaces[is_output] addObject:surface];
    [symbols[is_output] addObject:program->ports.all[i].symbol];
  }
  request->request =
      [[(id<AneRequestClass>)program->ane.classes[kRequest] requestWithInputs:surfaces[0]
                                                                 inputIndices:symbols[0]
                                                                      outputs:surfaces[1]
                                                                outputIndices:symbols[1]
                                                                weightsBuffer:nil
                                                                    perfStats:nil
                                                               procedureIndex:program->ports.procedure] retain];
  if (!request->request) return fail(error, "bind", "the framework makes no request of these surfaces");
  request->options = [@{} retain];
  request->selector = @selector(evaluateWithQoS:options:request:error:);
  request->evaluate = reinterpret_cast<Evaluate>([program->model methodForSelector:request->selector]);
  return true;
}

// Calls copy(packed, row, bytes) for each row of the tensor: its place in packed memory and in the surface.
template <typename Copy>
bool copy_rows(hexane_ane_request* request, size_t index, size_t bytes, bool to_read, hexane_ane_error* error,
               Copy copy) {
  const Ports& ports = request->program->ports;
  if (index >= ports.size()) return fail(error, "copy", "got port %zu, need one below %zu", index, ports.size());
  const hexane_ane_port& port = ports.all[index].seen;
  const size_t row_bytes = port.shape[3] * ports.all[index].element_bytes;
  const size_t need = row_bytes * port.shape[0] * port.shape[1] * port.shape[2];
  if (bytes != need) return fail(error, "copy", "port %s: got %zu bytes, need %zu", port.name, bytes, need);
  const hexane_ane_surfaces& surfaces = request->program->ane.surfaces;
  void* surface = request->surfaces[index];
  if (!surfaces.lock(surface, to_read)) return fail(error, "copy", "port %s: its surface cannot be locked", port.name);
  auto* base = static_cast<char*>(surfaces.base(surface));
  size_t packed = 0;
  for (int64_t n = 0; n < port.shape[0]; ++n)
    for (int64_t c = 0; c < port.shape[1]; ++c)
      for (int64_t h = 0; h < port.shape[2]; ++h, packed += row_bytes)
        copy(packed, base + n * port.batch_stride + c * port.plane_stride + h * port.row_stride, row_bytes);
  return surfaces.unlock(surface, to_read) || fail(error, "copy", "port %s: its surface cannot be unlocked", port.name);
}

bool evaluate(void* object, uint32_t qos, hexane_ane_error* error) {
  const auto* request = static_cast<hexane_ane_request*>(object);
  NSError* failure = nil;
  return request->evaluate(request->program->model, request->selector, qos, request->options, request->request,
                           &failure) ||
         fail(error, "evaluate", failure);
}

}  // namespace

hexane_ane_request* hexane_ane_bind(hexane_ane_program* program, void* const* surfaces, hexane_ane_error* error) {
  const uint64_t load = program->loaded;
  if (refuse_fork(error)) return nullptr;
  if (!load) {
    fail(error, "bind", "the program is not loaded");
    return nullptr;
  }
  ++program->references;
  auto* request = new hexane_ane_request{.program = program, .load = load, .surfaces = {}, .owns_surfaces = !surfaces};
  if (take_surfaces(request, surfaces, error) && guarded(error, "bind", [&] { return build(request, error); }))
    return request;
  hexane_ane_unbind(request);
  return nullptr;
}

bool hexane_ane_unbind(hexane_ane_request* request) {
  if (!request) return true;
  if (request->program->stuck) return false;
  hexane_ane_error ignored;
  guarded(&ignored, "bind", [&] {
    [request->request release];
    [request->options release];
    return true;
  });
  if (request->owns_surfaces)
    for (void* surface : request->surfaces) request->program->ane.surfaces.release(surface);
  release(request->program);
  delete request;
  return true;
}

bool hexane_ane_evaluate(hexane_ane_request* request, uint32_t qos, hexane_ane_error* error) {
  hexane_ane_program* program = request->program;
  if (refuse_fork(error)) return false;
  if (program->loaded != request->load) return fail(error, "evaluate", "the program has been unloaded since bind");
  return within(program, {"evaluate", evaluate, request, qos, program->ane.setup.evaluate_limit_ms}, error);
}

bool hexane_ane_write(hexane_ane_request* request, size_t port, const void* data, size_t bytes,
                      hexane_ane_error* error) {
  const auto copy = [&](size_t packed, char* row, size_t size) {
    memcpy(row, static_cast<const char*>(data) + packed, size);
  };
  return copy_rows(request, port, bytes, false, error, copy);
}

bool hexane_ane_read(hexane_ane_request* request, size_t port, void* data, size_t bytes, hexane_ane_error* error) {
  const auto copy = [&](size_t packed, const char* row, size_t size) {
    memcpy(static_cast<char*>(data) + packed, row, size);
  };
  return copy_rows(request, port, bytes, true, error, copy);
}
