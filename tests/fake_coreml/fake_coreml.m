// A stand-in for Core ML: the classes and methods that Hexane uses, as strict as Apple's documentation is. It computes
// by a function of the test. Freed objects stay in memory, so that a release too many is seen.
#import <Foundation/Foundation.h>
#import <objc/runtime.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "fake_coreml.h"

static fake_coreml_describe describe_function;
static fake_coreml_predict predict_function;
static int64_t macos = 2600, uses_backings = 1, raises, new_arrays, refuse_locks, moves, last_units = -1;
static _Atomic int64_t num_live, num_faults;

struct fake_coreml_reply {
  char* text;
  char* refusal;
};

void fake_coreml_set_host(fake_coreml_describe describe, fake_coreml_predict predict) {
  describe_function = describe;
  predict_function = predict;
}

void fake_coreml_answer(fake_coreml_reply* reply, const char* text) { reply->text = strdup(text); }

void fake_coreml_refuse(fake_coreml_reply* reply, const char* reason) { reply->refusal = strdup(reason); }

bool fake_coreml_set(const char* name, int64_t value) {
  const struct {
    const char* name;
    int64_t* value;
  } settings[] = {{"macos", &macos},           {"uses_backings", &uses_backings}, {"raise", &raises},
                  {"new_arrays", &new_arrays}, {"refuse_locks", &refuse_locks},   {"moves", &moves}};
  for (size_t i = 0; i < sizeof settings / sizeof *settings; ++i)
    if (strcmp(settings[i].name, name) == 0) return *settings[i].value = value, true;
  return false;
}

int64_t fake_coreml_live(void) { return num_live; }
int64_t fake_coreml_faults(void) { return num_faults; }
int64_t fake_coreml_units(void) { return last_units; }

static BOOL is_missing(SEL name) {
  static const struct {
    const char* name;
    int64_t since;
  } methods[] = {{"setOutputBackings:", 1100},
                 {"initWithPixelBuffer:shape:", 1200},
                 {"pixelBuffer", 1200},
                 {"getBytesWithHandler:", 1203},
                 {"predictionFromFeatures:options:completionHandler:", 1400},
                 {"loadContentsOfURL:configuration:completionHandler:", 1404},
                 {"computeDeviceUsageForMLProgramOperation:", 1404},
                 {"estimatedCostOfMLProgramOperation:", 1404},
                 {"setFunctionName:", 1500},
                 {"stateDescriptionsByName", 1500},
                 {"newState", 1500},
                 {"getMultiArrayForStateNamed:handler:", 1500},
                 {"predictionFromFeatures:usingState:options:error:", 1500}};
  for (size_t i = 0; i < sizeof methods / sizeof *methods; ++i)
    if (strcmp(methods[i].name, sel_getName(name)) == 0) return macos < methods[i].since;
  return NO;
}

static void refuse(NSString* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  NSString* reason = [[[NSString alloc] initWithFormat:format arguments:arguments] autorelease];
  va_end(arguments);
  [NSException raise:NSInvalidArgumentException format:@"%@", reason];
}

static id failure(NSError** error, NSInteger code, NSString* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  NSString* said = [[[NSString alloc] initWithFormat:format arguments:arguments] autorelease];
  va_end(arguments);
  if (error)
    *error = [NSError errorWithDomain:@"com.apple.CoreML"
                                 code:code
                             userInfo:[NSDictionary dictionaryWithObject:said forKey:NSLocalizedDescriptionKey]];
  return nil;
}

@interface FakeObject : NSObject {
 @protected
  BOOL dead;
}
@end

@implementation FakeObject
+ (id)allocWithZone:(NSZone*)zone {
  ++num_live;
  return [super allocWithZone:zone];
}
+ (BOOL)respondsToSelector:(SEL)name {
  return [super respondsToSelector:name] && !is_missing(name);
}
+ (BOOL)instancesRespondToSelector:(SEL)name {
  return [super instancesRespondToSelector:name] && !is_missing(name);
}
- (BOOL)respondsToSelector:(SEL)name {
  return [super respondsToSelector:name] && !is_missing(name);
}
- (id)retain {
  if (dead) ++num_faults;
  return [super retain];
}
- (oneway void)release {
  if (dead)
    ++num_faults;
  else
    [super release];
}
- (void)dealloc {
  dead = YES;
  --num_live;
  return;
  [super dealloc];
}
@end

// ---- arrays

static size_t bytes_of(NSInteger dtype) {
  switch (dtype) {
    case 0x10000 | 64:
      return 8;
    case 0x10000 | 32:
    case 0x20000 | 32:
      return 4;
    case 0x10000 | 16:
      return 2;
    case 0x20000 | 8:
      return 1;
    default:
      return 0;
  }
}

static NSInteger dtype_named(NSString* name) {
  NSDictionary* numbers =
      [NSDictionary dictionaryWithObjectsAndKeys:@(0x10000 | 64), @"fp64", @(0x10000 | 32), @"fp32", @(0x10000 | 16),
                                                 @"fp16", @(0x20000 | 32), @"int32", @(0x20000 | 8), @"int8", nil];
  return [[numbers objectForKey:name] integerValue];
}

static size_t count_of(NSArray* shape) {
  size_t count = 1;
  for (NSNumber* extent in shape) count *= [extent unsignedIntegerValue];
  return count;
}

// ---- CoreVideo's pixel buffers: rows of whole 64 bytes

typedef struct {
  size_t width, height, row_bytes;
  uint32_t format;
  char* data;
  _Atomic int references, locks;
} FakePixels;

FAKE_COREML_API NSString* kCVPixelBufferIOSurfacePropertiesKey = @"IOSurfaceProperties";

FAKE_COREML_API int32_t CVPixelBufferCreate(const void* allocator, size_t width, size_t height, uint32_t format,
                                            NSDictionary* attributes, void** made) {
  if (!width || !height || format != 'L00h') return -6680;
  if (![attributes objectForKey:kCVPixelBufferIOSurfacePropertiesKey]) return -6682;
  FakePixels* pixels = calloc(1, sizeof *pixels);
  pixels->width = width;
  pixels->height = height;
  pixels->format = format;
  pixels->row_bytes = (width * 2 + 63) / 64 * 64;
  pixels->data = calloc(height, pixels->row_bytes);
  pixels->references = 1;
  ++num_live;
  *made = pixels;
  return 0;
}
FAKE_COREML_API void CVPixelBufferRelease(FakePixels* pixels) {
  if (--pixels->references < 0) ++num_faults;
  if (pixels->references == 0) --num_live;
}
FAKE_COREML_API int32_t CVPixelBufferLockBaseAddress(FakePixels* pixels, uint64_t flags) {
  if (refuse_locks) return -6660;
  ++pixels->locks;
  return flags == 0 ? 0 : -6661;
}
FAKE_COREML_API int32_t CVPixelBufferUnlockBaseAddress(FakePixels* pixels, uint64_t flags) {
  if (--pixels->locks < 0) ++num_faults;
  return flags == 0 ? 0 : -6661;
}
FAKE_COREML_API void* CVPixelBufferGetBaseAddress(FakePixels* pixels) {
  return pixels->locks > 0 ? pixels->data + moves : NULL;
}
FAKE_COREML_API size_t CVPixelBufferGetBytesPerRow(FakePixels* pixels) { return pixels->row_bytes; }

@interface MLMultiArray : FakeObject {
 @public
  FakePixels* pixels;
  char* data;
  void* own;
  NSArray* shape;
  NSArray* strides;
  NSInteger dataType;
}
@end

@implementation MLMultiArray
- (id)initWithDataPointer:(void*)pointer
                    shape:(NSArray*)extents
                 dataType:(NSInteger)dtype
                  strides:(NSArray*)steps
              deallocator:(void (^)(void*))deallocator
                    error:(NSError**)error {
  if (!pointer) refuse(@"an array without memory");
  if (!bytes_of(dtype)) refuse(@"dtype %ld", (long)dtype);
  if ((uintptr_t)pointer % bytes_of(dtype)) refuse(@"memory that is not aligned to its dtype");
  if (![extents count] || [extents count] != [steps count]) refuse(@"shape %@ with strides %@", extents, steps);
  for (size_t i = 0; i < [extents count]; ++i) {
    const long long extent = [[extents objectAtIndex:i] longLongValue], step = [[steps objectAtIndex:i] longLongValue];
    if (extent < 1) refuse(@"shape %@", extents);
    if (step < 1 && extent > 1) refuse(@"strides %@: elements overlap", steps);
  }
  if (!(self = [super init])) return nil;
  data = pointer;
  shape = [extents copy];
  strides = [steps copy];
  dataType = dtype;
  return self;
}
- (id)initWithPixelBuffer:(void*)given shape:(NSArray*)extents {
  FakePixels* buffer = given;
  if (!buffer || buffer->format != 'L00h') refuse(@"a pixel buffer of another format");
  size_t rows = 1;
  for (size_t i = 0; i + 1 < [extents count]; ++i) rows *= [[extents objectAtIndex:i] unsignedIntegerValue];
  if ([[extents lastObject] unsignedIntegerValue] != buffer->width || rows != buffer->height)
    refuse(@"the shape %@ over a pixel buffer of %zu x %zu", extents, buffer->width, buffer->height);
  if (!(self = [super init])) return nil;
  pixels = buffer;
  ++pixels->references;
  data = pixels->data;
  shape = [extents copy];
  dataType = 0x10000 | 16;
  NSMutableArray* steps = [NSMutableArray arrayWithObject:@1];
  size_t step = pixels->row_bytes / 2;
  for (size_t i = [extents count] - 1; i-- > 0;) {
    [steps insertObject:@(step) atIndex:0];
    step *= [[extents objectAtIndex:i] unsignedIntegerValue];
  }
  strides = [steps copy];
  return self;
}
- (void*)pixelBuffer {
  return pixels;
}
- (NSArray*)shape {
  return shape;
}
- (NSArray*)strides {
  return strides;
}
- (NSInteger)dataType {
  return dataType;
}
- (void*)dataPointer {
  if (pixels) ++pixels->locks;  // as Core ML's own does
  return data;
}
- (void)getBytesWithHandler:(void (^)(const void*, NSInteger))handler {
  handler(data, (NSInteger)(count_of(shape) * bytes_of(dataType)));
}
- (void)dealloc {
  [shape release];
  [strides release];
  free(own);
  if (pixels) CVPixelBufferRelease(pixels);
  [super dealloc];
}
@end

// Memory of Core ML's own: rows of whole 64 bytes, as it lays out what the engine writes.
static MLMultiArray* own_array(NSArray* shape, NSInteger dtype, BOOL packed) {
  const size_t bytes = bytes_of(dtype), rank = [shape count];
  NSMutableArray* strides = [NSMutableArray array];
  size_t step = 1;
  for (size_t i = rank; i-- > 0;) {
    [strides insertObject:@(step) atIndex:0];
    step *= [[shape objectAtIndex:i] unsignedIntegerValue];
    if (i + 1 == rank && !packed) step = (step * bytes + 63) / 64 * 64 / bytes;
  }
  void* memory = calloc(step, bytes);
  MLMultiArray* made = [[[MLMultiArray alloc] initWithDataPointer:memory
                                                            shape:shape
                                                         dataType:dtype
                                                          strides:strides
                                                      deallocator:nil
                                                            error:NULL] autorelease];
  made->own = memory;
  return made;
}

static void copy_packed(MLMultiArray* array, char* packed, BOOL into_array) {
  const size_t bytes = bytes_of(array->dataType), rank = [array->shape count], count = count_of(array->shape);
  for (size_t i = 0; i < count; ++i) {
    size_t rest = i, offset = 0;
    for (size_t axis = rank; axis-- > 0;) {
      const size_t extent = [[array->shape objectAtIndex:axis] unsignedIntegerValue];
      offset += rest % extent * [[array->strides objectAtIndex:axis] unsignedIntegerValue];
      rest /= extent;
    }
    char* there = array->data + offset * bytes;
    into_array ? memcpy(there, packed + i * bytes, bytes) : memcpy(packed + i * bytes, there, bytes);
  }
}

// ---- features

@interface MLFeatureValue : FakeObject {
 @public
  MLMultiArray* array;
}
@end

@implementation MLFeatureValue
+ (id)featureValueWithMultiArray:(MLMultiArray*)array {
  if (![array isKindOfClass:[MLMultiArray class]]) refuse(@"a feature value of %@", array);
  MLFeatureValue* made = [[[self alloc] init] autorelease];
  made->array = [array retain];
  return made;
}
- (MLMultiArray*)multiArrayValue {
  return array;
}
- (void)dealloc {
  [array release];
  [super dealloc];
}
@end

@interface MLDictionaryFeatureProvider : FakeObject {
 @public
  NSDictionary* values;
}
@end

@implementation MLDictionaryFeatureProvider
- (id)initWithDictionary:(NSDictionary*)given error:(NSError**)error {
  for (NSString* name in given)
    if (![[given objectForKey:name] isKindOfClass:[MLFeatureValue class]]) refuse(@"feature %@ is no value", name);
  if (!(self = [super init])) return nil;
  values = [given copy];
  return self;
}
- (MLFeatureValue*)featureValueForName:(NSString*)name {
  return [values objectForKey:name];
}
- (void)dealloc {
  [values release];
  [super dealloc];
}
@end

@interface MLPredictionOptions : FakeObject {
 @public
  NSDictionary* backings;
}
@end

@implementation MLPredictionOptions
- (void)setOutputBackings:(NSDictionary*)given {
  [backings autorelease];
  backings = [given copy];
}
- (void)dealloc {
  [backings release];
  [super dealloc];
}
@end

@interface MLModelConfiguration : FakeObject {
 @public
  NSInteger units;
  NSString* function;
}
@end

@implementation MLModelConfiguration
- (void)setComputeUnits:(NSInteger)given {
  if (given < 0 || given > 3) refuse(@"compute units %ld", (long)given);
  if (given == 3 && macos < 1300) refuse(@"compute units of macOS 13");
  units = given;
}
- (void)setFunctionName:(NSString*)name {
  [function autorelease];
  function = [name copy];
}
- (void)dealloc {
  [function release];
  [super dealloc];
}
@end

@interface MLFeatureDescription : FakeObject {
 @public
  NSInteger type;
  BOOL isOptional;
  NSArray* shape;
  NSInteger dataType;
}
@end

@implementation MLFeatureDescription
- (NSInteger)type {
  return type;
}
- (BOOL)isOptional {
  return isOptional;
}
- (id)multiArrayConstraint {
  return type == 5 ? self : nil;
}
- (id)stateConstraint {
  return type == 8 ? self : nil;
}
- (NSArray*)shape {
  if (type != 5) refuse(@"the shape of no array");
  return shape;
}
- (NSArray*)bufferShape {
  if (type != 8) refuse(@"the buffer's shape of no state");
  return shape;
}
- (NSInteger)dataType {
  return dataType;
}
- (void)dealloc {
  [shape release];
  [super dealloc];
}
@end

@interface MLModelDescription : FakeObject {
 @public
  NSMutableDictionary *inputs, *outputs, *states;
}
@end

@implementation MLModelDescription
- (id)init {
  if (!(self = [super init])) return nil;
  inputs = [NSMutableDictionary new];
  outputs = [NSMutableDictionary new];
  states = [NSMutableDictionary new];
  return self;
}
- (NSDictionary*)inputDescriptionsByName {
  return inputs;
}
- (NSDictionary*)outputDescriptionsByName {
  return outputs;
}
- (NSDictionary*)stateDescriptionsByName {
  return states;
}
- (void)add:(NSArray*)words {
  NSString* side = [words objectAtIndex:0];
  MLFeatureDescription* made = [[MLFeatureDescription new] autorelease];
  const BOOL is_image = [side isEqualToString:@"image"];
  made->type = is_image ? 4 : [side isEqualToString:@"state"] ? 8 : 5;
  if (!is_image) {
    NSMutableArray* extents = [NSMutableArray array];
    for (NSString* extent in [[words objectAtIndex:3] componentsSeparatedByString:@","])
      [extents addObject:@([extent longLongValue])];
    made->shape = [extents retain];
    made->dataType = dtype_named([words objectAtIndex:2]);
    made->isOptional = [[words lastObject] isEqualToString:@"optional"];
  }
  NSMutableDictionary* all = made->type == 8 ? states : [side isEqualToString:@"output"] ? outputs : inputs;
  [all setObject:made forKey:[words objectAtIndex:1]];
}
- (void)dealloc {
  [inputs release];
  [outputs release];
  [states release];
  [super dealloc];
}
@end

// ---- models

@class MLModel;

@interface MLState : FakeObject {
 @public
  MLModel* model;
  NSMutableDictionary* arrays;
}
@end

@implementation MLState
- (void)getMultiArrayForStateNamed:(NSString*)name handler:(void (^)(id))handler {
  if (![arrays objectForKey:name]) refuse(@"no state %@", name);
  handler([arrays objectForKey:name]);
}
- (void)dealloc {
  [(id)model release];
  [arrays release];
  [super dealloc];
}
@end

static NSString* const kFile = @"model.txt";

static NSArray* lines_of(NSURL* folder, NSError** error) {
  if (![folder isFileURL] || ![[folder path] hasSuffix:@".mlmodelc"])
    return failure(error, 3, @"%@ is not a compiled model; compile it first", [folder path]);
  NSString* text = [NSString stringWithContentsOfFile:[[folder path] stringByAppendingPathComponent:kFile]
                                             encoding:NSUTF8StringEncoding
                                                error:NULL];
  return text ? [text componentsSeparatedByString:@"\n"] : failure(error, 3, @"%@ is no compiled model", [folder path]);
}

@interface MLModel : FakeObject {
 @public
  NSString* identifier;
  MLModelDescription* description;
  _Atomic int calls;
}
@end

@implementation MLModel
+ (NSURL*)compileModelAtURL:(NSURL*)package error:(NSError**)error {
  if (![package isFileURL]) refuse(@"%@ is no file", package);
  if (![[package path] hasSuffix:@".mlpackage"] && ![[package path] hasSuffix:@".mlmodel"])
    return failure(error, 3, @"%@ has an unknown suffix", [package path]);
  if (![[NSFileManager defaultManager] fileExistsAtPath:[package path]])
    return failure(error, 0, @"%@ is not there", [package path]);
  fake_coreml_reply reply = {NULL, NULL};
  if (!describe_function) return failure(error, 3, @"nobody set a host");
  describe_function([[package path] UTF8String], &reply);
  if (reply.refusal || !reply.text) {
    failure(error, 3, @"%s", reply.refusal ? reply.refusal : "no answer");
    free(reply.refusal);
    free(reply.text);
    return nil;
  }
  static _Atomic int num_compiled;
  NSString* folder = [NSTemporaryDirectory()
      stringByAppendingPathComponent:[NSString stringWithFormat:@"fake_%d_%d.mlmodelc",
                                                                [[NSProcessInfo processInfo] processIdentifier],
                                                                num_compiled++]];
  [[NSFileManager defaultManager] createDirectoryAtPath:folder
                            withIntermediateDirectories:YES
                                             attributes:nil
                                                  error:NULL];
  NSString* text = [NSString stringWithUTF8String:reply.text];
  free(reply.text);
  [text writeToFile:[folder stringByAppendingPathComponent:kFile]
         atomically:NO
           encoding:NSUTF8StringEncoding
              error:NULL];
  return [NSURL fileURLWithPath:folder];
}
+ (id)modelWithContentsOfURL:(NSURL*)folder configuration:(MLModelConfiguration*)wanted error:(NSError**)error {
  if (![wanted isKindOfClass:[MLModelConfiguration class]]) refuse(@"the configuration %@", wanted);
  NSArray* lines = lines_of(folder, error);
  if (!lines) return nil;
  MLModel* made = [[self new] autorelease];
  made->description = [MLModelDescription new];
  for (NSString* line in lines) {
    NSArray* words = [line componentsSeparatedByString:@" "];
    NSString* first = [words objectAtIndex:0];
    if ([first isEqualToString:@"id"]) made->identifier = [[words objectAtIndex:1] retain];
    if ([first isEqualToString:@"refuse"]) return failure(error, 0, @"%@", [line substringFromIndex:7]);
    if ([[NSArray arrayWithObjects:@"input", @"output", @"state", @"image", nil] containsObject:first])
      [made->description add:words];
  }
  if (macos < 1500 && [[made->description stateDescriptionsByName] count])
    return failure(error, 3, @"the model is of a version that this system does not know");
  last_units = wanted->units;
  return made;
}
- (id)modelDescription {
  return description;
}

- (MLMultiArray*)checked:(id)array as:(MLFeatureDescription*)said name:(NSString*)name error:(NSError**)error {
  if (!array) return failure(error, 1, @"Required input feature not passed to neural network: %@", name);
  if (![array isKindOfClass:[MLMultiArray class]]) refuse(@"feature %@ is %@", name, array);
  MLMultiArray* given = array;
  if (given->pixels && given->pixels->locks) refuse(@"feature %@ is locked for the CPU", name);
  if (![given->shape isEqualToArray:said->shape])
    return failure(error, 1, @"MultiArray shape %@ of %@ does not match the shape %@ in the model description",
                   given->shape, name, said->shape);
  if (given->dataType != said->dataType)
    return failure(error, 1, @"MultiArray of %@ has the dtype %ld, need %ld", name, (long)given->dataType,
                   (long)said->dataType);
  return given;
}

- (id)predict:(MLDictionaryFeatureProvider*)features
        state:(MLState*)state
      options:(MLPredictionOptions*)options
        error:(NSError**)error {
  if (raises) refuse(@"as it was asked for");
  if (![features isKindOfClass:[MLDictionaryFeatureProvider class]]) refuse(@"the features %@", features);
  if (![options isKindOfClass:[MLPredictionOptions class]]) refuse(@"the options %@", options);
  if ([description->states count] && !state) refuse(@"a model with states needs a state");
  if (state && state->model != self) refuse(@"the state is another model's");
  for (NSString* name in features->values)
    if (![description->inputs objectForKey:name]) refuse(@"there is no input %@", name);
  for (NSString* name in options->backings)
    if (![description->outputs objectForKey:name]) refuse(@"there is no output %@", name);

  const size_t most = [description->inputs count] + [description->outputs count] + [description->states count];
  fake_coreml_value* values = calloc(most + 1, sizeof *values);
  MLMultiArray** arrays = calloc(most + 1, sizeof *arrays);
  NSMutableDictionary* results = [NSMutableDictionary dictionary];
  size_t count = 0;
  BOOL good = YES;
  for (NSString* name in description->inputs) {
    MLFeatureDescription* said = [description->inputs objectForKey:name];
    MLFeatureValue* value = [features featureValueForName:name];
    if (!value && said->isOptional) continue;
    arrays[count] = [self checked:[value multiArrayValue] as:said name:name error:error];
    if (!arrays[count]) good = NO;
    values[count++] = (fake_coreml_value){[name UTF8String], "input", NULL, 0};
  }
  for (NSString* name in description->outputs) {
    MLFeatureDescription* said = [description->outputs objectForKey:name];
    id backing = [options->backings objectForKey:name];
    arrays[count] = backing ? [self checked:backing as:said name:name error:error] : nil;
    if (backing && !arrays[count]) good = NO;
    if (!backing || !uses_backings) arrays[count] = own_array(said->shape, said->dataType, NO);
    MLMultiArray* result = arrays[count];
    if (new_arrays && result && result->pixels)
      result = [[[MLMultiArray alloc] initWithPixelBuffer:result->pixels shape:result->shape] autorelease];
    if (result) [results setObject:[MLFeatureValue featureValueWithMultiArray:result] forKey:name];
    values[count++] = (fake_coreml_value){[name UTF8String], "output", NULL, 0};
  }
  for (NSString* name in description->states) {
    arrays[count] = [state->arrays objectForKey:name];
    values[count++] = (fake_coreml_value){[name UTF8String], "state", NULL, 0};
  }
  for (size_t i = 0; good && i < count; ++i) {
    values[i].bytes = count_of(arrays[i]->shape) * bytes_of(arrays[i]->dataType);
    values[i].data = calloc(1, values[i].bytes);
    copy_packed(arrays[i], values[i].data, NO);
  }
  if (good) {
    fake_coreml_reply reply = {NULL, NULL};
    predict_function([identifier UTF8String], values, count, &reply);
    if (reply.refusal) {
      failure(error, 0, @"%s", reply.refusal);
      good = NO;
    }
    free(reply.refusal);
  }
  for (size_t i = 0; i < count; ++i) {
    if (good && strcmp(values[i].side, "input") != 0) copy_packed(arrays[i], values[i].data, YES);
    free(values[i].data);
  }
  free(values);
  free(arrays);
  if (!good) return nil;
  return [[[MLDictionaryFeatureProvider alloc] initWithDictionary:results error:NULL] autorelease];
}

- (id)alone:(id)features state:(MLState*)state options:(id)options error:(NSError**)error {
  if (++calls > 1) {
    --calls;
    refuse(@"two calls of one model at the same time");
  }
  @try {
    return [self predict:features state:state options:options error:error];
  } @finally {
    --calls;
  }
}
- (id)predictionFromFeatures:(id)features options:(id)options error:(NSError**)error {
  return [self alone:features state:nil options:options error:error];
}
- (id)predictionFromFeatures:(id)features usingState:(MLState*)state options:(id)options error:(NSError**)error {
  if (![state isKindOfClass:[MLState class]]) refuse(@"the state %@", state);
  return [self alone:features state:state options:options error:error];
}

struct start {
  MLModel* model;
  id features, options;
  void (^handler)(id, NSError*);
};

static void* run_started(void* given) {
  struct start* start = given;
  @autoreleasepool {
    NSError* error = nil;
    id result = nil;
    @try {
      result = [start->model predict:start->features state:nil options:start->options error:&error];
    } @catch (NSException* exception) {
      failure(&error, 0, @"%@", [exception reason]);
    }
    start->handler(result, error);
    [start->model release];
    [start->features release];
    [start->options release];
  }
  _Block_release(start->handler);
  free(start);
  return NULL;
}

- (void)predictionFromFeatures:(id)features
                       options:(id)options
             completionHandler:(void (^)(id output, NSError* error))handler {
  struct start* start = malloc(sizeof *start);
  *start = (struct start){[self retain], [features retain], [options retain], _Block_copy(handler)};
  pthread_t thread;
  GSRegisterCurrentThread();
  pthread_create(&thread, NULL, run_started, start);
  pthread_detach(thread);
}
- (MLState*)newState {
  MLState* made = [MLState new];
  made->model = [self retain];
  made->arrays = [NSMutableDictionary new];
  for (NSString* name in description->states) {
    MLFeatureDescription* said = [description->states objectForKey:name];
    [made->arrays setObject:own_array(said->shape, said->dataType, NO) forKey:name];
  }
  return made;
}
- (void)dealloc {
  [identifier release];
  [description release];
  [super dealloc];
}
@end

// ---- plans

@interface MLCPUComputeDevice : FakeObject
@end
@implementation MLCPUComputeDevice
@end
@interface MLGPUComputeDevice : FakeObject
@end
@implementation MLGPUComputeDevice
@end
@interface MLNeuralEngineComputeDevice : FakeObject
@end
@implementation MLNeuralEngineComputeDevice
@end

static id device_named(NSString* name) {
  if ([name isEqualToString:@"cpu"]) return [[MLCPUComputeDevice new] autorelease];
  if ([name isEqualToString:@"gpu"]) return [[MLGPUComputeDevice new] autorelease];
  if ([name isEqualToString:@"ne"]) return [[MLNeuralEngineComputeDevice new] autorelease];
  return nil;
}

// An operation, with its usage and its cost.
@interface FakeOperation : FakeObject {
 @public
  NSArray* words;  // of the line "op"
}
@end

@implementation FakeOperation
- (NSString*)operatorName {
  return [words objectAtIndex:1];
}
- (NSArray*)outputs {
  return [NSArray arrayWithObject:self];
}
- (NSString*)name {
  return [words objectAtIndex:2];
}
- (NSArray*)blocks {
  return [NSArray array];
}
- (id)preferredComputeDevice {
  return device_named([words objectAtIndex:3]);
}
- (NSArray*)supportedComputeDevices {
  NSMutableArray* found = [NSMutableArray array];
  for (NSString* name in [[words objectAtIndex:4] componentsSeparatedByString:@","])
    [found addObject:device_named(name)];
  return found;
}
- (double)weight {
  return [[words objectAtIndex:5] doubleValue];
}
- (void)dealloc {
  [words release];
  [super dealloc];
}
@end

// The plan, its structure, the program, the function and its block.
@interface MLComputePlan : FakeObject {
 @public
  NSMutableArray* operations;
}
@end

@implementation MLComputePlan
+ (void)loadContentsOfURL:(NSURL*)folder
            configuration:(id)configuration
        completionHandler:(void (^)(id plan, NSError* error))handler {
  NSError* error = nil;
  NSArray* lines = lines_of(folder, &error);
  MLComputePlan* made = nil;
  if (lines) {
    made = [[self new] autorelease];
    made->operations = [NSMutableArray new];
    for (NSString* line in lines) {
      NSArray* words = [line componentsSeparatedByString:@" "];
      if (![[words objectAtIndex:0] isEqualToString:@"op"]) continue;
      FakeOperation* operation = [[FakeOperation new] autorelease];
      operation->words = [words retain];
      [made->operations addObject:operation];
    }
  }
  handler(made, error);
}
- (id)modelStructure {
  return self;
}
- (id)program {
  return self;
}
- (NSDictionary*)functions {
  return [NSDictionary dictionaryWithObject:self forKey:@"main"];
}
- (id)block {
  return self;
}
- (NSArray*)operations {
  return operations;
}
- (id)computeDeviceUsageForMLProgramOperation:(FakeOperation*)operation {
  if (![operations containsObject:operation]) refuse(@"the operation is another plan's");
  return [operation preferredComputeDevice] ? operation : nil;
}
- (id)estimatedCostOfMLProgramOperation:(FakeOperation*)operation {
  return [operation preferredComputeDevice] ? operation : nil;
}
- (void)dealloc {
  [operations release];
  [super dealloc];
}
@end
