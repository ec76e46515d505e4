// Declarations that the Objective-C++ files of this folder share. The Objective-C++ files are built without C++
// exceptions; Objective-C exceptions stop at guarded().
#pragma once

#import <Foundation/Foundation.h>
#import <objc/runtime.h>

#include <atomic>

#include "device/ane_private.h"
#include "device/guard.h"
#include "device/hexane_ane.h"

struct hexane_ane_program;

namespace hexane::ane {

// Fills the error. Always returns false, for callers to return.
bool fail(hexane_ane_error* error, const char* stage, const char* format, ...) __attribute__((format(printf, 3, 4)));
bool fail(hexane_ane_error* error, const char* stage, NSError* failure);
void advise(hexane_ane_error* error, const char* hint);

// True if body() returned true. An exception of body() becomes an error of the stage.
template <typename Body>
bool guarded(hexane_ane_error* error, const char* stage, Body body) {
  struct Call {
    Body* body;
    bool result;
  } call{&body, false};
  char text[sizeof error->text];
  const auto run = [](void* context) {
    auto* inner = static_cast<Call*>(context);
    inner->result = (*inner->body)();
  };
  return hexane_guard(run, &call, text, sizeof text) ? call.result : fail(error, stage, "%s", text);
}

bool open_framework(const hexane_ane_setup& setup, hexane_ane_error* error);
NSString* attributes_text(id attributes);                           // An XML property list, or else a description.
Class find_class(const hexane_ane_setup& setup, const char* name);  // Returns nil if no class has this name.
Method method_of(Class found, const AneSelector& selector);

// The folder that the compiler reads a program from. Programs of the same text and weights share a folder, in all
// processes: the last process to leave the folder removes it. The folder may be missing while processes use it.
NSString* enter_folder(NSString* identifier, hexane_ane_error* error);
void leave_folder(NSString* path);
// Writes the missing files. The caller must hold a Turn of the folder.
bool put_files(NSString* folder, NSData* text, NSDictionary* weights, hexane_ane_error* error);

// A lock of a folder. While it lives, no other thread or process writes, reads or deletes the folder through Hexane.
class Turn {
 public:
  explicit Turn(NSString* folder);
  ~Turn();
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  NSString* path_ = nil;
  int descriptor_ = -1;
};

void sweep_folders();  // removes folders and lock files that killed processes have left

// Returns "@model_path/<name>"; nil, with the error filled, for a name that leads out of the folder or belongs to
// another file.
NSString* blob_path(const char* name, hexane_ane_error* error);

struct Port {
  hexane_ane_port seen;
  NSString* name;
  NSNumber* symbol;  // the index by which a request binds the port
  int element_bytes;
};

struct Ports {
  Port* all = nullptr;  // inputs, then outputs
  size_t num_inputs = 0, num_outputs = 0;
  NSNumber* procedure = nil;
  size_t size() const { return num_inputs + num_outputs; }
};

Ports read_ports(NSDictionary* attributes);  // raises on a missing entry
void free_ports(Ports* ports);

// IOSurface's functions; null on a system without IOSurface.
const hexane_ane_surfaces* system_surfaces();

// True, with the error filled, in a forked child of the process that opened the framework: the service does not know
// the child.
bool refuse_fork(hexane_ane_error* error);

// A call of the framework. `object` has its operands and lies on the heap, because the call may outlive its caller.
struct Call {
  const char* stage;
  bool (*run)(void* object, uint32_t qos, hexane_ane_error* error);
  void* object;
  uint32_t qos;
  uint32_t limit_ms;
};

// True if a call of the framework for a program, such as load or evaluate, returns true within limit_ms (0: any time).
// A call that never returns makes the program stuck: the program and its requests are never freed, and later calls
// fail.
bool within(hexane_ane_program* program, const Call& call, hexane_ane_error* error);

void release(hexane_ane_program* program);

}  // namespace hexane::ane

struct hexane_ane {
  hexane_ane_setup setup;
  hexane_ane_surfaces surfaces;
  Class classes[kNumClasses];
  bool asks_service = false;  // whether the framework has the methods of kKept
};

struct hexane_ane_program {
  hexane_ane ane;
  id model = nil;
  NSString* folder = nil;
  NSData* text = nil;           // The text and the weights may be written to files again.
  NSDictionary* weights = nil;  // The framework's model holds the same objects.
  bool is_kept = false;         // Whether the service kept the program at the last query.
  hexane::ane::Ports ports = {};
  uint32_t qos = 0;  // quality of service of the last load
  uint64_t num_loads = 0;
  std::atomic<uint64_t> loaded = 0;  // Number of the load; 0 while the program is not loaded.
  std::atomic<int> references = 1;   // One reference of the owner, and one of each request.
  std::atomic<bool> stuck = false;   // A call of the program has not returned.
};
