// Ports from the attributes of a loaded model. Only these attributes say how tensors lie in surfaces. Their layout is
// not documented, so nothing is guessed: an error names whatever is missing or unexpected.
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#import "device/ane.h"

namespace hexane::ane {
namespace {

constexpr uint64_t kMostBytes = uint64_t{1}
                                << 40;  // beyond any engine's memory: sizes computed from extents do not overflow

id want(id container, id key, Class type) {
  id found = nil;
  if ([container isKindOfClass:[NSDictionary class]]) found = [container objectForKey:key];
  if ([container isKindOfClass:[NSArray class]] && [key unsignedIntegerValue] < [container count])
    found = [container objectAtIndex:[key unsignedIntegerValue]];
  if (![found isKindOfClass:type])
    [NSException raise:@"HexaneAttributes"
                format:@"the attributes of the loaded model: got %@ for %@, need %@",
                       found ? (id)[found class] : @"nothing", key, type];
  return found;
}

uint64_t want_size(NSDictionary* live, NSString* key) {
  const uint64_t size = [want(live, key, [NSNumber class]) unsignedLongLongValue];
  if (size < 1 || size > kMostBytes)
    [NSException
         raise:@"HexaneAttributes"
        format:@"port %@: got %@ = %llu", [live objectForKey:@"Name"], key, static_cast<unsigned long long>(size)];
  return size;
}

const AneDtype& dtype_of(NSDictionary* live) {
  NSString* type = want(live, @"Type", [NSString class]);
  for (const AneDtype& dtype : kDtypes)
    if ([dtype.type isEqualToString:type]) return dtype;
  [NSException raise:@"HexaneAttributes" format:@"port %@: got the unknown type %@", [live objectForKey:@"Name"], type];
  abort();
}

NSString* plain(NSString* name) {
  return [name hasSuffix:kOutputSuffix] ? [name substringToIndex:[name length] - [kOutputSuffix length]] : name;
}

// Returns the index of the procedure's symbol with this name.
NSNumber* symbol_of(NSString* name, NSArray* symbols, NSArray* indices) {
  for (NSNumber* index in indices)
    if ([plain(want(symbols, index, [NSString class])) isEqualToString:name]) return index;
  [NSException raise:@"HexaneAttributes" format:@"port %@ is none of the symbols %@ at %@", name, symbols, indices];
  abort();
}

void refuse_unless(bool holds, NSString* name, const char* what) {
  if (!holds) [NSException raise:@"HexaneAttributes" format:@"port %@: %s", name, what];
}

Port read_port(NSDictionary* live, NSArray* symbols, NSArray* indices) {
  NSString* name = plain(want(live, @"Name", [NSString class]));
  const AneDtype& dtype = dtype_of(live);
  const uint64_t batches = want_size(live, @"Batches"), channels = want_size(live, @"Channels"),
                 height = want_size(live, @"Height"), width = want_size(live, @"Width");
  const uint64_t row = want_size(live, @"RowStride"), plane = want_size(live, @"PlaneStride"),
                 batch = want_size(live, @"BatchStride");
  for (NSString* key in @[ @"Depth", @"Interleave" ])
    refuse_unless(![live objectForKey:key] || want_size(live, key) == 1, name, "its depth or interleave is not 1");
  refuse_unless(width * dtype.bytes <= row, name, "its rows overlap");
  refuse_unless(height <= plane / row, name, "its planes overlap");
  refuse_unless(channels <= batch / plane, name, "its batches overlap");
  refuse_unless(batches <= kMostBytes / batch, name, "it is too large");
  NSNumber* symbol = symbol_of(name, symbols, indices);
  return {.seen = {.name = nullptr,
                   .dtype = dtype.name,
                   .shape = {static_cast<int64_t>(batches), static_cast<int64_t>(channels),
                             static_cast<int64_t>(height), static_cast<int64_t>(width)},
                   .row_stride = row,
                   .plane_stride = plane,
                   .batch_stride = batch,
                   .bytes = batches * batch},
          .name = name,
          .symbol = symbol,
          .element_bytes = dtype.bytes};
}

}  // namespace

Ports read_ports(NSDictionary* attributes) {
  NSDictionary* network = want(want(attributes, kNetworks, [NSArray class]), @0, [NSDictionary class]);
  NSDictionary* description = want(attributes, kDescription, [NSDictionary class]);
  NSDictionary* procedure = want(want(description, kProcedures, [NSArray class]), @0, [NSDictionary class]);
  NSArray* inputs = want(network, kInputSide.live_list, [NSArray class]);
  NSArray* outputs = want(network, kOutputSide.live_list, [NSArray class]);

  // Code that may raise an exception comes before code that retains or allocates.
  Ports ports;
  NSMutableData* read = [NSMutableData data];
  for (const AneSide& side : {kInputSide, kOutputSide})
    for (NSDictionary* live in want(network, side.live_list, [NSArray class])) {
      const Port port = read_port(live, want(description, side.symbols, [NSArray class]),
                                  want(procedure, side.symbol_indices, [NSArray class]));
      [read appendBytes:&port length:sizeof port];
    }
  ports.procedure = [want(procedure, kProcedureId, [NSNumber class]) retain];
  ports.num_inputs = [inputs count];
  ports.num_outputs = [outputs count];
  ports.all = static_cast<Port*>(calloc(ports.size(), sizeof(Port)));
  memcpy(ports.all, [read bytes], [read length]);
  for (size_t i = 0; i < ports.size(); ++i) {
    Port& port = ports.all[i];
    port.seen.name = strdup([port.name UTF8String]);
    [port.name retain];
    [port.symbol retain];
  }
  return ports;
}

void free_ports(Ports* ports) {
  for (size_t i = 0; i < ports->size(); ++i) {
    free(const_cast<char*>(ports->all[i].seen.name));
    [ports->all[i].name release];
    [ports->all[i].symbol release];
  }
  free(ports->all);
  [ports->procedure release];
  *ports = {};
}

}  // namespace hexane::ane

size_t hexane_ane_num_inputs(const hexane_ane_program* program) { return program->ports.num_inputs; }

size_t hexane_ane_num_outputs(const hexane_ane_program* program) { return program->ports.num_outputs; }

hexane_ane_port hexane_ane_port_at(const hexane_ane_program* program, size_t index) {
  return index < program->ports.size() ? program->ports.all[index].seen : hexane_ane_port{};
}
