// Core ML's plan for each operation of a compiled model: MLComputePlan.
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>

#import "device/coreml.h"

namespace hexane::coreml {
namespace {

struct Answer {
  std::mutex mutex;
  std::condition_variable changed;
  id plan = nil;
  NSError* failure = nil;
  bool done = false;
};

void answer(Answer* to, id plan, NSError* failure) {
  const std::lock_guard lock(to->mutex);
  to->plan = [plan retain];
  to->failure = [failure retain];
  to->done = true;
  to->changed.notify_one();
}

const char* device_name(id device) {
  for (const CoreMLDeviceName& known : kCoreMLDevices) {
    Class found = find(known.class_name);
    if (found && [device isKindOfClass:found]) return known.name;
  }
  return device ? "other" : "";
}

struct Visitor {
  hexane_coreml_visit visit;
  void* context;
};

void visit_block(id<CoreMLPlan> plan, id<CoreMLStructure> block, const Visitor& visitor) {
  for (id<CoreMLStructure> operation in [block operations]) {
    id<CoreMLUsage> usage = [plan computeDeviceUsageForMLProgramOperation:operation];
    id<CoreMLUsage> cost = [plan estimatedCostOfMLProgramOperation:operation];
    char supported[64] = "";
    for (id device in [usage supportedComputeDevices]) {
      const size_t used = strlen(supported);
      snprintf(supported + used, sizeof supported - used, "%s%s", used ? "," : "", device_name(device));
    }
    NSArray* outputs = [operation outputs];
    const char* output = [outputs count] ? [[(id<CoreMLStructure>)[outputs objectAtIndex:0] name] UTF8String] : "";
    const hexane_coreml_operation found = {.operator_name = [[operation operatorName] UTF8String],
                                           .output = output,
                                           .preferred = device_name([usage preferredComputeDevice]),
                                           .supported = supported,
                                           .cost = cost ? [cost weight] : -1};
    visitor.visit(visitor.context, &found);
    for (id<CoreMLStructure> inner in [operation blocks]) visit_block(plan, inner, visitor);
  }
}

bool visit_plan(id<CoreMLPlan> plan, const char* function, const Visitor& visitor, hexane_ane_error* error) {
  id<CoreMLStructure> program = [(id<CoreMLStructure>)[plan modelStructure] program];
  if (!program) return fail(error, "plan", "a model that is no ML program, need one");
  NSDictionary* functions = [program functions];
  NSString* name = [NSString stringWithUTF8String:function ? function : "main"];
  id<CoreMLStructure> found = [functions objectForKey:name];
  if (!found && !function && [functions count] == 1)
    for (NSString* only in functions) found = [functions objectForKey:only];
  if (!found) return fail(error, "plan", "no function %s in the plan", [name UTF8String]);
  visit_block(plan, [found block], visitor);
  return true;
}

}  // namespace
}  // namespace hexane::coreml

using namespace hexane::coreml;

bool hexane_coreml_plan(const char* framework, const char* folder, hexane_coreml_units units, const char* function,
                        hexane_coreml_visit visit, void* context, hexane_ane_error* error) {
  if (!open_framework(framework, error)) return false;
  if (![find("MLComputePlan") respondsToSelector:@selector(loadContentsOfURL:configuration:completionHandler:)])
    return fail(error, "plan", "an older system, need macOS 14.4 or later for Core ML's plan");
  Answer got;
  Answer* const own = &got;
  if (!guarded(error, "plan", [&] {
        id<CoreMLPlanClass> plans = (id<CoreMLPlanClass>)class_of("MLComputePlan");
        [plans loadContentsOfURL:url_of(folder)
                   configuration:configuration(units, function)
               completionHandler:^(id plan, NSError* failure) {
                 answer(own, plan, failure);
               }];
        return true;
      }))
    return false;
  {
    std::unique_lock lock(got.mutex);
    got.changed.wait(lock, [&] { return got.done; });
  }
  const bool done = guarded(error, "plan", [&] {
    if (!got.plan) return fail(error, "plan", got.failure);
    return visit_plan(got.plan, function, {visit, context}, error);
  });
  [got.plan release];
  [got.failure release];
  return done;
}
