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
const CoreMLDtypeName* dtype_of(NSInteger number);  // null for an unknown dtype

// array_in() returns the array over a buffer; is_in() is true if an array uses the buffer's memory. A buffer belongs to
// the CPU, except during a prediction.
id array_in(const hexane_coreml_buffer& buffer);
bool is_in(id array, const hexane_coreml_buffer& buffer);
void give_to_core_ml(hexane_coreml_buffer& buffer);
bool give_to_cpu(hexane_coreml_buffer& buffer);  // false if CoreVideo does not lock the buffer or has moved its data

// Returns an autoreleased MLMultiArray over the caller's memory; raises if Core ML refuses the memory.
id array_over(const hexane_coreml_array& array);
// Copies between an MLMultiArray and the caller's memory. Raises if dtype or shape differ.
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
