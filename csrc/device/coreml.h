// Declarations that the Objective-C++ files of Core ML share.
#pragma once

#include <mutex>
#include <vector>

#import "device/ane.h"
#import "device/coreml_api.h"
#include "device/hexane_coreml.h"

namespace hexane::coreml {

using ane::advise;
using ane::fail;
using ane::guarded;

bool open_framework(const char* path, hexane_ane_error* error);
inline Class find(const char* name) { return (Class)objc_getClass(name); }  // Nil if no class has this name.
Class class_of(const char* name);                                           // Raises if no class has this name.
id configuration(hexane_coreml_units units, const char* function);  // An autoreleased object; raises on missing API.
NSURL* url_of(const char* path);
const CoreMLDtypeName* dtype_of(NSInteger number);  // null for one that is not known

// The array over a buffer, and whether another array of Core ML's has the buffer's memory. A buffer belongs to the CPU,
// which may read and write its data, but during a prediction.
id array_in(const hexane_coreml_buffer& buffer);
bool is_in(id array, const hexane_coreml_buffer& buffer);
void give_to_core_ml(hexane_coreml_buffer& buffer);
bool give_to_cpu(hexane_coreml_buffer& buffer);  // false where CoreVideo does not lock it, or has moved its data

// An MLMultiArray over the caller's memory, autoreleased; raises what Core ML refuses.
id array_over(const hexane_coreml_array& array);
// Copies between an MLMultiArray and the caller's memory. Raises where dtype or shape differ.
void copy_out(id array, const hexane_coreml_array& to);
void copy_in(id array, const hexane_coreml_array& from);

}  // namespace hexane::coreml

struct hexane_coreml_model {
  id model = nil;
  hexane_coreml_port* ports[3] = {};
  size_t num_ports[3] = {};
  std::mutex mutex;
};

struct hexane_coreml_state {
  hexane_coreml_model* model;
  id state = nil;
};
