// Predictions over the caller's memory, synchronous and asynchronous, and states.
#import "device/coreml.h"

namespace hexane::coreml {
namespace {

struct Outputs {
  hexane_coreml_array* arrays;
  size_t count;
};

constexpr char kMoved[] = "a pixel buffer that CoreVideo has moved or does not lock, need arrays of your own (bind)";
constexpr char kStateAdvice[] = "device=\"cpu\" keeps states on any system";

id features_of(const hexane_coreml_array* inputs, size_t count) {
  NSMutableDictionary* values = [NSMutableDictionary dictionary];
  id<CoreMLValueClass> value_class = (id<CoreMLValueClass>)class_of("MLFeatureValue");
  for (size_t i = 0; i < count; ++i)
    [values setObject:[value_class featureValueWithMultiArray:array_over(inputs[i])]
               forKey:[NSString stringWithUTF8String:inputs[i].name]];
  NSError* failure = nil;
  id<CoreMLFeatures> made = [class_of("MLDictionaryFeatureProvider") alloc];
  id result = [made initWithDictionary:values error:&failure];
  if (!result) [NSException raise:@"HexaneCoreML" format:@"inputs: %@", [failure localizedDescription]];
  return [result autorelease];
}

// Returns arrays over the caller's memory by output name, for Core ML to write to; nil if the system lacks this option.
NSDictionary* backings_of(const Outputs& outputs, id<CoreMLOptions> options) {
  if (![(id)options respondsToSelector:@selector(setOutputBackings:)]) return nil;
  NSMutableDictionary* backings = [NSMutableDictionary dictionary];
  for (size_t i = 0; i < outputs.count; ++i)
    [backings setObject:array_over(outputs.arrays[i]) forKey:[NSString stringWithUTF8String:outputs.arrays[i].name]];
  [options setOutputBackings:backings];
  return backings;
}

id new_options() { return [[[class_of("MLPredictionOptions") alloc] init] autorelease]; }

// Core ML may ignore the memory given for an output (its backing), and return the output in memory of its own.
void take(id<CoreMLFeatures> result, const Outputs& outputs, NSDictionary* backings) {
  for (size_t i = 0; i < outputs.count; ++i) {
    hexane_coreml_array& output = outputs.arrays[i];
    NSString* name = [NSString stringWithUTF8String:output.name];
    id array = [(id<CoreMLValue>)[result featureValueForName:name] multiArrayValue];
    if (!array) [NSException raise:@"HexaneCoreML" format:@"output %s: Core ML gave no array", output.name];
    output.copied = output.buffer ? !is_in(array, *output.buffer) : array != [backings objectForKey:name];
    if (output.copied) copy_out(array, output);
  }
}

// Core ML owns the buffers of a prediction until take_back(), or until this object ends. The buffers may be freed after
// take_back().
class GivenBuffers {
 public:
  GivenBuffers(const hexane_coreml_array* inputs, size_t num_inputs, const Outputs& outputs) {
    for (size_t i = 0; i < num_inputs; ++i) add(inputs[i].buffer);
    for (size_t i = 0; i < outputs.count; ++i) add(outputs.arrays[i].buffer);
    for (hexane_coreml_buffer* buffer : buffers_) give_to_core_ml(*buffer);
  }
  ~GivenBuffers() { take_back(); }
  GivenBuffers(const GivenBuffers&) = delete;
  GivenBuffers& operator=(const GivenBuffers&) = delete;
  bool take_back() {
    bool all = true;
    for (hexane_coreml_buffer* buffer : buffers_) all = give_to_cpu(*buffer) && all;
    buffers_.clear();
    return all;
  }

 private:
  void add(hexane_coreml_buffer* buffer) {
    if (buffer) buffers_.push_back(buffer);
  }
  std::vector<hexane_coreml_buffer*> buffers_;
};

struct Pending {
  GivenBuffers buffers;
  Outputs outputs;
  NSDictionary* backings;
  hexane_coreml_done done;
  void* context;
};

void finish(Pending* pending, id result, NSError* failure) {
  hexane_ane_error error;
  const bool done = guarded(&error, "evaluate", [&] {
    if (!pending->buffers.take_back()) return fail(&error, "evaluate", kMoved);
    if (!result) return fail(&error, "evaluate", failure);
    take(result, pending->outputs, pending->backings);
    return true;
  });
  [pending->backings release];
  pending->done(pending->context, done ? nullptr : &error);
  delete pending;
}

bool with_state(hexane_coreml_state* state, const hexane_coreml_array& array, bool writes, hexane_ane_error* error) {
  const std::lock_guard lock(state->model->mutex);
  const hexane_coreml_array* own = &array;
  return guarded(error, writes ? "write state" : "read state", [&] {
    bool found = false;
    bool* const seen = &found;
    [(id<CoreMLState>)state->state getMultiArrayForStateNamed:[NSString stringWithUTF8String:array.name]
                                                      handler:^(id buffer) {
                                                        writes ? copy_in(buffer, *own) : copy_out(buffer, *own);
                                                        *seen = true;
                                                      }];
    return found || fail(error, "state", "Core ML has no state %s", own->name);
  });
}

}  // namespace
}  // namespace hexane::coreml

using namespace hexane::coreml;

bool hexane_coreml_predict(hexane_coreml_model* model, hexane_coreml_state* state, const hexane_coreml_array* inputs,
                           size_t num_inputs, hexane_coreml_array* outputs, size_t num_outputs,
                           hexane_ane_error* error) {
  const std::lock_guard lock(model->mutex);
  return guarded(error, "evaluate", [&] {
    const Outputs wanted = {outputs, num_outputs};
    GivenBuffers buffers(inputs, num_inputs, wanted);
    id features = features_of(inputs, num_inputs), options = new_options();
    NSDictionary* backings = backings_of(wanted, options);
    NSError* failure = nil;
    id<CoreMLModel> core_ml = model->model;
    id result = state ? [core_ml predictionFromFeatures:features usingState:state->state options:options error:&failure]
                      : [core_ml predictionFromFeatures:features options:options error:&failure];
    if (!buffers.take_back()) return fail(error, "evaluate", kMoved);
    if (!result) return fail(error, "evaluate", failure);
    take(result, wanted, backings);
    return true;
  });
}

bool hexane_coreml_has_async(const hexane_coreml_model* model) {
  return [model->model respondsToSelector:@selector(predictionFromFeatures:options:completionHandler:)];
}

bool hexane_coreml_predict_async(hexane_coreml_model* model, const hexane_coreml_array* inputs, size_t num_inputs,
                                 hexane_coreml_array* outputs, size_t num_outputs, hexane_coreml_done done,
                                 void* context, hexane_ane_error* error) {
  if (!hexane_coreml_has_async(model))
    return fail(error, "evaluate", "an older system, need macOS 14 or later for asynchronous predictions");
  const Outputs wanted = {outputs, num_outputs};
  auto* pending = new Pending{{inputs, num_inputs, wanted}, wanted, nil, done, context};
  const bool started = guarded(error, "evaluate", [&] {
    id features = features_of(inputs, num_inputs), options = new_options();
    pending->backings = [backings_of(pending->outputs, options) retain];
    Pending* own = pending;
    [(id<CoreMLModel>)model->model predictionFromFeatures:features
                                                  options:options
                                        completionHandler:^(id result, NSError* failure) {
                                          finish(own, result, failure);
                                        }];
    return true;
  });
  if (!started) {
    [pending->backings release];
    delete pending;
  }
  return started;
}

hexane_coreml_state* hexane_coreml_new_state(hexane_coreml_model* model, hexane_ane_error* error) {
  id made = nil;
  if (![model->model respondsToSelector:@selector(newState)]) {
    fail(error, "state", "an older system, need macOS 15 or later for states");
    advise(error, kStateAdvice);
    return nullptr;
  }
  const std::lock_guard lock(model->mutex);
  const bool done = guarded(error, "state", [&] {
    made = [(id<CoreMLModel>)model->model newState];  // newState returns a retained object
    return made || fail(error, "state", "Core ML gave no state");
  });
  return done ? new hexane_coreml_state{model, made} : nullptr;
}

void hexane_coreml_free_state(hexane_coreml_state* state) {
  if (!state) return;
  hexane_ane_error ignored;
  guarded(&ignored, "state", [&] {
    [state->state release];
    return true;
  });
  delete state;
}

bool hexane_coreml_read_state(hexane_coreml_state* state, hexane_coreml_array* array, hexane_ane_error* error) {
  return with_state(state, *array, false, error);
}

bool hexane_coreml_write_state(hexane_coreml_state* state, const hexane_coreml_array* array, hexane_ane_error* error) {
  return with_state(state, *array, true, error);
}
