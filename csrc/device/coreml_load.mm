// Compiles a package and loads the result, with the ports that Core ML reports.
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

#import "device/coreml.h"

namespace hexane::coreml {
namespace {

constexpr char kLoadAdvice[] =
    "`hexane check FILE` says what Core ML is known to refuse; compute_units=\"all\" lets Core ML use other devices";

const char* kind_of(NSInteger type) {
  switch (type) {
    case kCoreMLArrayFeature:
    case kCoreMLStateFeature:
      return "array";
    case kCoreMLImageFeature:
      return "image";
    case kCoreMLStringFeature:
      return "string";
    case kCoreMLInt64Feature:
    case kCoreMLDoubleFeature:
      return "number";
    default:
      return "other";
  }
}

void read_port(NSString* name, id<CoreMLFeatureDescription> said, hexane_coreml_port* port) {
  port->kind = kind_of([said type]);
  port->dtype = "";
  port->optional = [said isOptional];
  const bool is_state = [said type] == kCoreMLStateFeature;
  id<CoreMLConstraint> constraint = is_state ? [said stateConstraint] : [said multiArrayConstraint];
  if (strcmp(port->kind, "array") == 0 && constraint) {
    const CoreMLDtypeName* dtype = dtype_of([constraint dataType]);
    if (dtype) port->dtype = dtype->name;
    NSArray* shape = is_state ? [constraint bufferShape] : [constraint shape];
    port->rank = [shape count];
    auto* extents = static_cast<int64_t*>(calloc(port->rank + 1, sizeof(int64_t)));
    for (size_t i = 0; i < port->rank; ++i) extents[i] = [[shape objectAtIndex:i] longLongValue];
    port->shape = extents;
  }
  port->name = strdup([name UTF8String]);
}

void read_side(hexane_coreml_model* model, hexane_coreml_side side, NSDictionary* features) {
  model->ports[side] = static_cast<hexane_coreml_port*>(calloc([features count] + 1, sizeof(hexane_coreml_port)));
  for (NSString* name in features)
    read_port(name, [features objectForKey:name], &model -> ports[side][model->num_ports[side]++]);
}

void read_ports(hexane_coreml_model* model) {
  id<CoreMLDescription> description = [(id<CoreMLModel>)model->model modelDescription];
  read_side(model, HEXANE_COREML_INPUT, [description inputDescriptionsByName]);
  read_side(model, HEXANE_COREML_OUTPUT, [description outputDescriptionsByName]);
  if ([(id)description respondsToSelector:@selector(stateDescriptionsByName)])
    read_side(model, HEXANE_COREML_STATE, [description stateDescriptionsByName]);
}

bool has(const CoreMLSelector& selector) {
  Class found = find(selector.receiver);
  const SEL name = sel_registerName(selector.name);
  if (!found) return false;
  return selector.of_class ? [found respondsToSelector:name] : [found instancesRespondToSelector:name];
}

}  // namespace

bool open_framework(const char* path, hexane_ane_error* error) {
  if (dlopen(path ? path : kCoreML, RTLD_NOW | RTLD_GLOBAL)) return true;
  fail(error, "open", "there is no Core ML: %s", dlerror());
  advise(error, "Core ML is part of macOS; device=\"cpu\" runs the same model here");
  return false;
}

Class class_of(const char* name) {
  Class found = find(name);
  if (!found) [NSException raise:@"HexaneCoreML" format:@"this system's Core ML has no class %s", name];
  return found;
}

id configuration(hexane_coreml_units units, const char* function) {
  id<CoreMLConfiguration> made = [[[class_of("MLModelConfiguration") alloc] init] autorelease];
  [made setComputeUnits:units];
  if (function) {
    if (![(id)made respondsToSelector:@selector(setFunctionName:)])
      [NSException raise:@"HexaneCoreML" format:@"function %s: got an older system, need macOS 15 or later", function];
    [made setFunctionName:[NSString stringWithUTF8String:function]];
  }
  return made;
}

NSURL* url_of(const char* path) { return [NSURL fileURLWithPath:[NSString stringWithUTF8String:path]]; }

}  // namespace hexane::coreml

using namespace hexane::coreml;

bool hexane_coreml_compile(const char* framework, const char* package, char* folder, size_t folder_bytes,
                           hexane_ane_error* error) {
  return open_framework(framework, error) && guarded(error, "compile", [&] {
           NSError* failure = nil;
           id<CoreMLModelClass> models = (id<CoreMLModelClass>)class_of("MLModel");
           NSURL* made = [models compileModelAtURL:url_of(package) error:&failure];
           if (!made) {
             fail(error, "compile", failure);
             advise(error, "`hexane check FILE` says what Core ML is known to refuse");
             return false;
           }
           const char* path = [[made path] fileSystemRepresentation];
           if (strlen(path) >= folder_bytes) return fail(error, "compile", "the path %s is too long", path);
           strcpy(folder, path);
           return true;
         });
}

hexane_coreml_model* hexane_coreml_load(const char* framework, const char* folder, hexane_coreml_units units,
                                        const char* function, hexane_ane_error* error) {
  if (!open_framework(framework, error)) return nullptr;
  auto* model = new hexane_coreml_model;
  const bool loaded = guarded(error, "load", [&] {
    NSError* failure = nil;
    id<CoreMLModelClass> models = (id<CoreMLModelClass>)class_of("MLModel");
    model->model = [[models modelWithContentsOfURL:url_of(folder)
                                     configuration:configuration(units, function)
                                             error:&failure] retain];
    if (!model->model) {
      fail(error, "load", failure);
      advise(error, kLoadAdvice);
      return false;
    }
    read_ports(model);
    return true;
  });
  if (loaded) return model;
  hexane_coreml_free(model);
  return nullptr;
}

void hexane_coreml_free(hexane_coreml_model* model) {
  if (!model) return;
  hexane_ane_error ignored;
  guarded(&ignored, "unload", [&] {
    [model->model release];
    return true;
  });
  for (size_t side = 0; side < 3; ++side) {
    for (size_t i = 0; i < model->num_ports[side]; ++i) {
      free(const_cast<char*>(model->ports[side][i].name));
      free(const_cast<int64_t*>(model->ports[side][i].shape));
    }
    free(model->ports[side]);
  }
  delete model;
}

size_t hexane_coreml_num_ports(const hexane_coreml_model* model, hexane_coreml_side side) {
  return model->num_ports[side];
}

hexane_coreml_port hexane_coreml_port_at(const hexane_coreml_model* model, hexane_coreml_side side, size_t index) {
  return index < model->num_ports[side] ? model->ports[side][index] : hexane_coreml_port{};
}

bool hexane_coreml_probe(const char* framework, hexane_ane_line line, void* context, hexane_ane_error* error) {
  return open_framework(framework, error) && guarded(error, "probe", [&] {
           const char* last = "";
           for (const CoreMLSelector& selector : kCoreMLSelectors) {
             if (strcmp(last, selector.receiver) != 0) {
               last = selector.receiver;
               Class found = find(last);
               line(context, "class", last, found ? "yes" : "", selector.since);
             }
             char name[160];
             snprintf(name, sizeof name, "%c[%s %s]", selector.of_class ? '+' : '-', last, selector.name);
             line(context, "selector", name, has(selector) ? "yes" : "", selector.since);
           }
           return true;
         });
}
