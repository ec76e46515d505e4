// What the stand-in refuses of callers that csrc/device is not: text that is no NSData, weights that are nil, files
// that are not there, calls out of order. Prints what went through that should not.
#include <cstdio>

#import "device/ane_private.h"
#import "device/guard.h"
#import "fake_ane.h"

namespace {

NSString* const kText = @"program(1.3)\n";
int num_wrong = 0;

void check(bool holds, const char* claim) {
  if (holds) return;
  ++num_wrong;
  std::printf("wrong: %s\n", claim);
}

Class class_of(AneClass which) { return NSClassFromString([NSString stringWithUTF8String:kClassNames[which]]); }

id describe(id text, NSDictionary* weights) {
  return [(id<AneDescriptorClass>)class_of(kDescriptor) modelWithMILText:text weights:weights optionsPlist:nil];
}

NSData* data() { return [kText dataUsingEncoding:NSUTF8StringEncoding]; }

id<AneModel> make_model() {
  return [(id<AneModelClass>)class_of(kModel) inMemoryModelWithDescriptor:describe(data(), @{})];
}

bool raises(void (*body)(void*)) {
  char text[256];
  return !hexane_guard(body, nullptr, text, sizeof text);
}

void write_text(id<AneModel> model, NSString* text) {
  NSString* folder = [NSTemporaryDirectory() stringByAppendingPathComponent:[model hexStringIdentifier]];
  [[NSFileManager defaultManager] createDirectoryAtPath:folder
                            withIntermediateDirectories:YES
                                             attributes:nil
                                                  error:NULL];
  [[text dataUsingEncoding:NSUTF8StringEncoding] writeToFile:[folder stringByAppendingPathComponent:@"model.mil"]
                                                  atomically:YES];
}

void descriptors() {
  check(raises([](void*) { describe(kText, @{}); }), "text that is no NSData");
  check(raises([](void*) { describe(data(), nil); }), "weights that are nil");
  check(!describe(
            data(),
            @{@"weights/w.bin" : @{@"offset" : @0, @"data" : data()}}),
        "a path outside of the model");
  check(!describe(data(), @{@"@model_path/w.bin" : data()}), "weights without an offset");
  check(describe(data(), @{}) != nil, "a good descriptor is refused");
}

void order() {
  NSError* error = nil;
  id<AneModel> model = make_model();
  fake_ane_set("writes_files", 0);
  fake_ane_set("load_compiles", 0);
  check(![model compileWithQoS:21 options:@{} error:&error], "a compile without files");
  write_text(model, @"program(1.3) of something else");
  check(![model compileWithQoS:21 options:@{} error:&error], "a compile of another text than the descriptor's");
  write_text(model, kText);
  check(![model loadWithQoS:21 options:@{} error:&error], "a load without a compile");
  check(![model unloadWithQoS:21 error:&error], "an unload without a load");
  check(![model modelAttributes], "attributes without a load");
  check(![model compiledModelExists], "a program is kept that nobody compiled");
  fake_ane_set("load_compiles", 1);
  fake_ane_set("compile_limit", 4);
  error = nil;
  check(![model loadWithQoS:21 options:@{} error:&error] && error, "a load compiles a text that nothing lowers");
  error = nil;
  check(![model compileWithQoS:21 options:@{} error:&error] && error, "a text that nothing lowers");
  error = nil;
  check(![model compileWithQoS:21 options:@{} error:&error] && !error,
        "a compile beyond the budget that says something");
}

}  // namespace

int main() {
  char text[256] = "";
  const bool done = hexane_guard(
      [](void*) {
        descriptors();
        order();
      },
      nullptr, text, sizeof text);
  if (!done) std::printf("raised: %s\n", text);
  return num_wrong || !done;
}
