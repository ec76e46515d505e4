// Arrays of Core ML over the caller's memory, and copies to the caller if Core ML uses memory of its own.
#include <cstring>

#import "device/coreml.h"

namespace hexane::coreml {
namespace {

NSArray* numbers(const int64_t* values, size_t count) {
  NSMutableArray* result = [NSMutableArray array];
  for (size_t i = 0; i < count; ++i) [result addObject:[NSNumber numberWithLongLong:values[i]]];
  return result;
}

const CoreMLDtypeName& dtype_named(const hexane_coreml_array& array) {
  for (const CoreMLDtypeName& dtype : kCoreMLDtypes)
    if (strcmp(dtype.name, array.dtype) == 0) return dtype;
  [NSException raise:@"HexaneArray"
              format:@"array %s: got %s, need fp64, fp32, fp16, int32 or int8", array.name, array.dtype];
  return kCoreMLDtypes[0];
}

struct View {
  char* data;
  const int64_t* strides;
};

void copy_elements(View to, View from, const int64_t* shape, size_t rank, size_t bytes) {
  if (rank == 0) {
    memcpy(to.data, from.data, bytes);
    return;
  }
  const auto step = [bytes](int64_t stride) { return stride * static_cast<int64_t>(bytes); };
  if (rank == 1 && to.strides[0] == 1 && from.strides[0] == 1) {
    memcpy(to.data, from.data, static_cast<size_t>(shape[0]) * bytes);
    return;
  }
  for (int64_t i = 0; i < shape[0]; ++i)
    copy_elements({to.data + step(to.strides[0]) * i, to.strides + 1},
                  {from.data + step(from.strides[0]) * i, from.strides + 1}, shape + 1, rank - 1, bytes);
}

constexpr size_t kMostAxes = 32;

// Raises where the caller's array has another dtype or shape.
void check(id<CoreMLArray> array, const hexane_coreml_array& own) {
  const CoreMLDtypeName& dtype = dtype_named(own);
  if ([array dataType] != dtype.number) {
    const CoreMLDtypeName* got = dtype_of([array dataType]);
    [NSException
         raise:@"HexaneArray"
        format:@"array %s: got %s from Core ML, need %s", own.name, got ? got->name : "an unknown dtype", own.dtype];
  }
  if (![[array shape] isEqualToArray:numbers(own.shape, own.rank)] || own.rank > kMostAxes)
    [NSException raise:@"HexaneArray"
                format:@"array %s: got the shape %@ from Core ML, need %@", own.name, [array shape],
                       numbers(own.shape, own.rank)];
}

void copy(id<CoreMLArray> array, const hexane_coreml_array& own, bool into_core_ml) {
  check(array, own);
  int64_t theirs[kMostAxes];
  for (size_t i = 0; i < own.rank; ++i) theirs[i] = [[[array strides] objectAtIndex:i] longLongValue];
  const size_t bytes = dtype_named(own).bytes;
  const int64_t* their_strides = theirs;
  const hexane_coreml_array* ours = &own;
  const auto move = [=](char* data) {
    const View core_ml = {data, their_strides}, caller = {static_cast<char*>(ours->data), ours->strides};
    copy_elements(into_core_ml ? core_ml : caller, into_core_ml ? caller : core_ml, ours->shape, ours->rank, bytes);
  };
  if (!into_core_ml && [(id)array respondsToSelector:@selector(getBytesWithHandler:)]) {
    [array getBytesWithHandler:^(const void* data, NSInteger) {
      move(static_cast<char*>(const_cast<void*>(data)));
    }];
    return;
  }
  move(static_cast<char*>([array dataPointer]));
}

}  // namespace

const CoreMLDtypeName* dtype_of(NSInteger number) {
  for (const CoreMLDtypeName& dtype : kCoreMLDtypes)
    if (dtype.number == number) return &dtype;
  return nullptr;
}

id array_over(const hexane_coreml_array& array) {
  if (array.buffer) return array_in(*array.buffer);
  NSError* failure = nil;
  id<CoreMLArray> made = [class_of("MLMultiArray") alloc];
  id result = [made initWithDataPointer:array.data
                                  shape:numbers(array.shape, array.rank)
                               dataType:dtype_named(array).number
                                strides:numbers(array.strides, array.rank)
                            deallocator:nil
                                  error:&failure];
  if (!result)
    [NSException raise:@"HexaneArray"
                format:@"array %s: Core ML refuses it: %@", array.name, [failure localizedDescription]];
  return [result autorelease];
}

void copy_out(id array, const hexane_coreml_array& to) { copy(array, to, false); }

void copy_in(id array, const hexane_coreml_array& from) { copy(array, from, true); }

}  // namespace hexane::coreml
