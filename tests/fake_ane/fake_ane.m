// A stand-in for the private framework: its classes with their selectors and encodings, as strict as the engine is
// known to be. It computes on the CPU.
#import <Foundation/Foundation.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/memory_surface.h"
#include "fake_ane.h"
#include "program.h"

typedef struct __IOSurface* IOSurfaceRef;

static fake_ane_lower lower_function;
static void* lower_context;
static int64_t num_compiles, compile_limit = 119, fail_loads, raises, idle, stall_ms, no_engine, unnamed, float_type;
// How the framework treats files and its service's programs; fake_ane.h says what each means.
static int64_t unload_deletes = 1, writes_files = 1, load_compiles = 1, says_exists = 1, hash_bundle = 1, identity;
static int64_t compile_again = 1, fail_code;
static int64_t constexpr_attributes = 1, error_chain = 1, grammar = 1;
static int64_t equal_surfaces, refuse_map, hang_compile_ms, hang_load_ms, hang_evaluate_ms, hang_unload_ms;

struct fake_ane_reply {
  fake_program* program;
  NSData* plan;
  char why[4096];
};

void fake_ane_set_lower(fake_ane_lower lower, void* context) {
  lower_function = lower;
  lower_context = context;
}

void fake_ane_accept(fake_ane_reply* reply, const void* plan, size_t bytes) {
  reply->program = fake_program_make(plan, bytes, reply->why, sizeof reply->why);
  reply->plan = [NSData dataWithBytes:plan length:bytes];
}

void fake_ane_refuse(fake_ane_reply* reply, const char* reason) {
  snprintf(reply->why, sizeof reply->why, "%s", reason);
}

bool fake_ane_check_text(const char* mil, size_t mil_bytes, char* why, size_t why_bytes) {
  return fake_check_grammar(mil, mil_bytes, why, why_bytes);
}

bool fake_ane_set(const char* name, int64_t value) {
  const struct {
    const char* name;
    int64_t* value;
  } settings[] = {{"compile_limit", &compile_limit},
                  {"fail_loads", &fail_loads},
                  {"raise", &raises},
                  {"idle", &idle},
                  {"stall_ms", &stall_ms},
                  {"no_engine", &no_engine},
                  {"unnamed", &unnamed},
                  {"float_type", &float_type},
                  {"unload_deletes", &unload_deletes},
                  {"writes_files", &writes_files},
                  {"load_compiles", &load_compiles},
                  {"says_exists", &says_exists},
                  {"compile_again", &compile_again},
                  {"hash_bundle", &hash_bundle},
                  {"identity", &identity},
                  {"constexpr_attributes", &constexpr_attributes},
                  {"grammar", &grammar},
                  {"fail_code", &fail_code},
                  {"error_chain", &error_chain},
                  {"equal_surfaces", &equal_surfaces},
                  {"refuse_map", &refuse_map},
                  {"hang_compile_ms", &hang_compile_ms},
                  {"hang_load_ms", &hang_load_ms},
                  {"hang_evaluate_ms", &hang_evaluate_ms},
                  {"hang_unload_ms", &hang_unload_ms}};
  for (size_t i = 0; i < sizeof settings / sizeof *settings; ++i)
    if (strcmp(settings[i].name, name) == 0) {
      __atomic_store_n(settings[i].value, value, __ATOMIC_RELAXED);
      return true;
    }
  return false;
}

static int64_t get(const int64_t* value) { return __atomic_load_n(value, __ATOMIC_RELAXED); }

// A call that comes back late, as of a driver that signals nothing.
static void stall(void) { usleep((useconds_t)get(&stall_ms) * 1000); }

static void hang(const int64_t* one_ms) { usleep((useconds_t)(get(&stall_ms) + get(one_ms)) * 1000); }

// Takes one of what is left.
static bool take(int64_t* left) { return get(left) > 0 && __atomic_fetch_sub(left, 1, __ATOMIC_RELAXED) > 0; }

static bool fail(NSError** error, NSString* domain, NSInteger code, NSString* text) {
  NSDictionary* info = [NSDictionary dictionaryWithObject:text forKey:NSLocalizedDescriptionKey];
  if (error) *error = [NSError errorWithDomain:domain code:code userInfo:info];
  return false;
}

// The compiler's reason, two errors deep in one that says nothing, or alone.
static bool fail_compiler(NSError** error, NSInteger code, NSString* text) {
  fail(error, @"com.apple.appleneuralengine.compiler", code, text);
  if (!error || !get(&error_chain)) return false;
  for (NSString *domain in [NSArray arrayWithObjects:@"com.apple.aned", @"com.apple.appleneuralengine", nil]) {
    NSDictionary* info =
        [NSDictionary dictionaryWithObjectsAndKeys:@"The operation couldn\u2019t be completed.",
                                                   NSLocalizedDescriptionKey, *error, NSUnderlyingErrorKey, nil];
    *error = [NSError errorWithDomain:domain code:code userInfo:info];
  }
  return false;
}

static bool fail_compile(NSError** error, const char* why) {
  return fail_compiler(error, 1, [NSString stringWithFormat:@"_ANECompiler : ANECCompile() FAILED: err=(%s)", why]);
}

static bool fail_evaluate(NSError** error, int status) {
  NSString* text = [NSString stringWithFormat:@"ANEProgramProcessRequestDirect() Failed with status=0x%x : "
                                              @"statusType=0x9: Program Inference error",
                                              status];
  return fail(error, @"com.apple.appleneuralengine", 8, text);
}

static bool fail_map(NSError** error) {
  return fail(error, @"com.apple.appleneuralengine", 13, @"Program IOSurfaces map failure: status=0x12");
}

@interface _ANEDeviceInfo : NSObject
@end

@implementation _ANEDeviceInfo
+ (bool)hasANE {
  return !get(&no_engine);
}
+ (unsigned int)numANEs {
  return 1;
}
+ (NSString*)aneArchitectureType {
  return @"stand-in";
}
@end

@interface _ANEInMemoryModelDescriptor : NSObject {
 @public
  NSData* text;
  NSDictionary* weights;
}
@end

@implementation _ANEInMemoryModelDescriptor
+ (id)modelWithMILText:(NSData*)text weights:(NSDictionary*)weights optionsPlist:(NSData*)options {
  if (![text isKindOfClass:[NSData class]])
    [NSException raise:NSInvalidArgumentException format:@"-[%@ bytes]: unrecognized selector", [text class]];
  if (!weights) [NSException raise:NSInvalidArgumentException format:@"weights is nil"];
  for (NSString* path in weights) {
    NSDictionary* entry = [weights objectForKey:path];
    if (![path hasPrefix:@"@model_path/"] || ![entry isKindOfClass:[NSDictionary class]] ||
        ![[entry objectForKey:@"data"] isKindOfClass:[NSData class]] ||
        ![[entry objectForKey:@"offset"] isKindOfClass:[NSNumber class]])
      return nil;
  }
  if (options && ![options isKindOfClass:[NSData class]]) return nil;
  _ANEInMemoryModelDescriptor* made = [[[self alloc] init] autorelease];
  made->text = [text copy];
  made->weights = [weights copy];
  return made;
}
- (void)dealloc {
  [text release];
  [weights release];
  [super dealloc];
}
@end

@interface _ANEIOSurfaceObject : NSObject {
 @public
  hexane_memory_surface* surface;
}
@end

@implementation _ANEIOSurfaceObject
+ (id)objectWithIOSurface:(IOSurfaceRef)surface {
  if (!surface) return nil;
  _ANEIOSurfaceObject* made = [[[self alloc] init] autorelease];
  made->surface = (hexane_memory_surface*)surface;
  return made;
}
@end

@interface _ANERequest : NSObject {
 @public
  NSArray *surfaces[2], *indices[2];  // of the inputs, of the outputs
  NSNumber* procedure;
}
@end

@implementation _ANERequest
+ (id)requestWithInputs:(NSArray*)inputs
           inputIndices:(NSArray*)input_indices
                outputs:(NSArray*)outputs
          outputIndices:(NSArray*)output_indices
          weightsBuffer:(id)weights
              perfStats:(id)statistics
         procedureIndex:(NSNumber*)procedure {
  if ([inputs count] != [input_indices count] || [outputs count] != [output_indices count] || !procedure) return nil;
  _ANERequest* made = [[[self alloc] init] autorelease];
  made->surfaces[0] = [inputs copy];
  made->indices[0] = [input_indices copy];
  made->surfaces[1] = [outputs copy];
  made->indices[1] = [output_indices copy];
  made->procedure = [procedure retain];
  return made;
}
- (void)dealloc {
  for (int side = 0; side < 2; ++side) {
    [surfaces[side] release];
    [indices[side] release];
  }
  [procedure release];
  [super dealloc];
}
@end

enum { kMostPorts = 64 };

@interface _ANEInMemoryModel : NSObject {
  _ANEInMemoryModelDescriptor* descriptor;
  NSString* identifier;
  fake_program* program;  // of the last load
  bool loaded;
}
@end

@implementation _ANEInMemoryModel
+ (id)inMemoryModelWithDescriptor:(id)descriptor {
  if (![descriptor isKindOfClass:[_ANEInMemoryModelDescriptor class]]) return nil;
  _ANEInMemoryModel* made = [[[self alloc] init] autorelease];
  made->descriptor = [descriptor retain];
  return made;
}
- (void)dealloc {
  [descriptor release];
  [identifier release];
  fake_program_free(program);
  [super dealloc];
}

// Of the text and the weights, so that equal programs have the same.
- (NSString*)hexStringIdentifier {
  if (identifier) return identifier;
  uint64_t hash[2] = {0xcbf29ce484222325, 0xcbf29ce484222325};  // FNV-1a
  NSMutableArray* parts = [NSMutableArray arrayWithObject:descriptor->text];
  for (NSString* path in [[descriptor->weights allKeys] sortedArrayUsingSelector:@selector(compare:)]) {
    [parts addObject:[path dataUsingEncoding:NSUTF8StringEncoding]];
    [parts addObject:[[descriptor->weights objectForKey:path] objectForKey:@"data"]];
  }
  for (NSUInteger part = 0; part < [parts count]; ++part) {
    const unsigned char* bytes = [[parts objectAtIndex:part] bytes];
    const NSUInteger length = [[parts objectAtIndex:part] length];
    for (NSUInteger i = 0; i < length; ++i) hash[part != 0] = (hash[part != 0] ^ bytes[i]) * 0x100000001b3;
  }
  identifier = [[NSString alloc]
      initWithFormat:@"FAKE%016llX_%016llX", (unsigned long long)hash[0], (unsigned long long)hash[1]];
  return identifier;
}

- (NSString*)folder {
  return [NSTemporaryDirectory() stringByAppendingPathComponent:[self hexStringIdentifier]];
}

// Where the service keeps what it made of this identifier, for programs of one signer. It outlives processes.
- (NSString*)keptPath {
  NSString* folder = [[[NSProcessInfo processInfo] environment] objectForKey:@"FAKE_ANED"];
  if (!folder) folder = [NSTemporaryDirectory() stringByAppendingPathComponent:@"aned"];
  [[NSFileManager defaultManager] createDirectoryAtPath:folder
                            withIntermediateDirectories:YES
                                             attributes:nil
                                                  error:NULL];
  NSString* name = [NSString stringWithFormat:@"%lld-%@.hwx", (long long)get(&identity), [self hexStringIdentifier]];
  return [folder stringByAppendingPathComponent:name];
}

- (bool)isKept {
  return [[NSFileManager defaultManager] fileExistsAtPath:[self keptPath]];
}

- (bool)compiledModelExists {
  stall();
  return get(&says_exists) && [self isKept];
}

- (void)purgeCompiledModel {
  stall();
  [[NSFileManager defaultManager] removeItemAtPath:[self keptPath] error:NULL];
}

// The files of the folder that are this program's, with what they have to contain.
- (NSDictionary*)ownFiles {
  NSMutableDictionary* files = [NSMutableDictionary dictionary];
  [files setObject:descriptor->text forKey:@"model.mil"];
  for (NSString* key in descriptor->weights)
    [files setObject:[[descriptor->weights objectForKey:key] objectForKey:@"data"]
              forKey:[key substringFromIndex:strlen("@model_path/")]];
  NSArray* weights = [descriptor->weights allValues];
  [files setObject:[NSData data] forKey:@"net.plist"];
  [files setObject:[weights count] == 1 ? [[weights objectAtIndex:0] objectForKey:@"data"] : [NSData data]
            forKey:@"data"];
  return files;
}

// net.plist and data are inputs as the others are. Without writes_files the text and the weights are the caller's.
- (void)writeFiles {
  NSDictionary* files = [self ownFiles];
  for (NSString* name in files) {
    const bool inputs = [name isEqualToString:@"net.plist"] || [name isEqualToString:@"data"];
    NSString* path = [[self folder] stringByAppendingPathComponent:name];
    if (!get(&writes_files) && !inputs) continue;
    if (!get(&writes_files) && ![[NSFileManager defaultManager] fileExistsAtPath:[self folder]]) continue;
    [[NSFileManager defaultManager] createDirectoryAtPath:[path stringByDeletingLastPathComponent]
                              withIntermediateDirectories:YES
                                               attributes:nil
                                                    error:NULL];
    [[files objectForKey:name] writeToFile:path atomically:YES];
  }
}

// The files have to be there, and to be those that the identifier stands for.
- (NSString*)whatFilesLack {
  NSDictionary* files = [self ownFiles];
  for (NSString* name in files)
    if (![[files objectForKey:name]
            isEqual:[NSData dataWithContentsOfFile:[[self folder] stringByAppendingPathComponent:name]]])
      return [name stringByAppendingString:@" is not the program's"];
  return nil;
}

// A later macOS hashes the folder: nothing else may be in there, and only one weight file is known to work.
- (bool)isHashed {
  if ([descriptor->weights count] > 1) return false;
  NSDictionary* files = [self ownFiles];
  NSFileManager* manager = [NSFileManager defaultManager];
  for (NSString* name in [manager subpathsAtPath:[self folder]]) {
    BOOL is_folder = NO;
    [manager fileExistsAtPath:[[self folder] stringByAppendingPathComponent:name] isDirectory:&is_folder];
    if (!is_folder && ![files objectForKey:name]) return false;
  }
  return true;
}

- (bool)compileWithQoS:(unsigned int)qos options:(NSDictionary*)options error:(NSError**)error {
  hang(&hang_compile_ms);
  if (!get(&compile_again) && [self isKept]) return true;
  if (__atomic_fetch_add(&num_compiles, 1, __ATOMIC_RELAXED) >= get(&compile_limit)) return false;  // without a word
  if (qos > 63) return fail_compile(error, "qos");
  [self writeFiles];
  NSString* lack = [self whatFilesLack];
  if (lack) return fail_compile(error, [lack UTF8String]);
  if (get(&hash_bundle) && ![self isHashed]) return fail_compiler(error, 10, @"verifyBundleAtPath: hash mismatch");
  const char* text = [descriptor->text bytes];
  if ([descriptor->text length] < 12 || memcmp(text, "program(1.", 10) != 0 ||
      (get(&constexpr_attributes) && !fake_check_spelling(text, [descriptor->text length])))
    return fail_compiler(error, 1, @"InvalidMILProgram");
  struct fake_ane_reply reply = {NULL, nil, "nothing lowers programs"};
  if (get(&grammar) && !fake_check_grammar(text, [descriptor->text length], reply.why, sizeof reply.why))
    return fail_compiler(error, 1, [NSString stringWithUTF8String:reply.why]);
  if (!fake_check_blobs([[self folder] UTF8String], text, [descriptor->text length], reply.why, sizeof reply.why))
    return fail_compile(error, reply.why);
  if (lower_function) lower_function(lower_context, [[self folder] UTF8String], &reply);
  if (!reply.program) return fail_compile(error, reply.why);
  fake_program_free(reply.program);
  [reply.plan writeToFile:[self keptPath] atomically:YES];
  return true;
}

- (bool)loadWithQoS:(unsigned int)qos options:(NSDictionary*)options error:(NSError**)error {
  hang(&hang_load_ms);
  const bool fails = take(&fail_loads) || loaded;
  if (fails && get(&fail_code))
    return fail(error, @"com.apple.appleneuralengine", get(&fail_code), @"loadModel: failed");
  if (!fails && ![self isKept] && get(&load_compiles) && ![self compileWithQoS:qos options:options error:error])
    return false;
  NSData* plan = fails ? nil : [NSData dataWithContentsOfFile:[self keptPath]];
  char why[512];
  fake_program* made = plan ? fake_program_make([plan bytes], [plan length], why, sizeof why) : NULL;
  if (!made) return fail(error, @"com.apple.appleneuralengine", 6, @"Program load failure (0x20004)");
  fake_program_free(program);
  program = made;
  loaded = true;
  return true;
}

- (bool)unloadWithQoS:(unsigned int)qos error:(NSError**)error {
  hang(&hang_unload_ms);
  if (!loaded) return fail(error, @"com.apple.appleneuralengine", 6, @"Program unload failure");
  loaded = false;
  if (get(&unload_deletes)) [[NSFileManager defaultManager] removeItemAtPath:[self folder] error:NULL];
  return true;
}

// Sorted by name; symbols are in the order of the text, so that nobody mistakes one for the other.
- (NSArray*)liveList:(bool)output {
  NSMutableArray* list = [NSMutableArray array];
  for (size_t i = 0; i < fake_program_num_ports(program, output); ++i) {
    const fake_port port = fake_program_port(program, output, i);
    NSDictionary* types =
        [NSDictionary dictionaryWithObjectsAndKeys:@"Float16", @"fp16", @"Float32", @"fp32", @"Int8", @"int8", @"UInt8",
                                                   @"uint8", @"Int16", @"int16", @"UInt16", @"uint16", nil];
    NSMutableDictionary* live = [NSMutableDictionary dictionary];
    if (!get(&unnamed))
      [live setObject:[NSString stringWithFormat:output ? @"%s@output" : @"%s", port.name] forKey:@"Name"];
    NSString* type = [types objectForKey:[NSString stringWithUTF8String:port.dtype]];
    [live setObject:get(&float_type) ? @"Float64" : type forKey:@"Type"];
    const struct {
      NSString* key;
      uint64_t value;
    } sizes[] = {
        {@"Batches", port.shape[0]},         {@"Channels", port.shape[1]},        {@"Depth", 1},
        {@"Height", port.shape[2]},          {@"Width", port.shape[3]},           {@"RowStride", port.row_stride},
        {@"PlaneStride", port.plane_stride}, {@"BatchStride", port.batch_stride}, {@"Interleave", 1}};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; ++k)
      [live setObject:[NSNumber numberWithUnsignedLongLong:sizes[k].value] forKey:sizes[k].key];
    [list addObject:live];
  }
  NSSortDescriptor* by_name = [[[NSSortDescriptor alloc] initWithKey:@"Name" ascending:YES] autorelease];
  return [list sortedArrayUsingDescriptors:[NSArray arrayWithObject:by_name]];
}

- (NSArray*)symbols:(bool)output indices:(NSArray**)indices {
  NSMutableArray *names = [NSMutableArray array], *all = [NSMutableArray array];
  for (size_t i = 0; i < fake_program_num_ports(program, output); ++i) {
    [names addObject:[NSString stringWithUTF8String:fake_program_port(program, output, i).name]];
    [all addObject:[NSNumber numberWithUnsignedLong:i]];
  }
  *indices = all;
  return names;
}

- (NSDictionary*)modelAttributes {
  if (!loaded) return nil;
  NSArray *inputs, *outputs;
  NSArray *input_symbols = [self symbols:false indices:&inputs], *output_symbols = [self symbols:true indices:&outputs];
  NSDictionary* network = [NSDictionary dictionaryWithObjectsAndKeys:[self liveList:false], @"LiveInputList",
                                                                     [self liveList:true], @"LiveOutputList", nil];
  NSDictionary* procedure = [NSDictionary
      dictionaryWithObjectsAndKeys:[NSNumber numberWithInt:0], @"ANEFModelProcedureID", inputs,
                                   @"ANEFModelInputSymbolIndexArray", outputs, @"ANEFModelOutputSymbolIndexArray", nil];
  NSDictionary* description =
      [NSDictionary dictionaryWithObjectsAndKeys:input_symbols, @"kANEFModelInputSymbolsArrayKey", output_symbols,
                                                 @"kANEFModelOutputSymbolsArrayKey",
                                                 [NSArray arrayWithObject:procedure], @"ANEFModelProcedures", nil];
  return [NSDictionary dictionaryWithObjectsAndKeys:[NSArray arrayWithObject:network], @"NetworkStatusList",
                                                    description, @"ANEFModelDescription", nil];
}

// An evaluation maps the surfaces by itself; nobody was seen to map those of a program in memory before it.
- (bool)mapIOSurfacesWithRequest:(_ANERequest*)request cacheInference:(bool)cache error:(NSError**)error {
  return fail_map(error);
}

- (bool)evaluateWithQoS:(unsigned int)qos
                options:(NSDictionary*)options
                request:(_ANERequest*)request
                  error:(NSError**)error {
  hang(&hang_evaluate_ms);
  if (take(&raises)) [NSException raise:NSInternalInconsistencyException format:@"raised inside evaluate"];
  if (!loaded || [request->procedure intValue] != 0 || qos > 63) return fail_evaluate(error, 0x16);
  if (get(&refuse_map)) return fail_map(error);
  void* bases[2][kMostPorts] = {{NULL}};
  for (int side = 0; side < 2; ++side) {
    const NSUInteger count = fake_program_num_ports(program, side);
    if ([request->surfaces[side] count] != count || count > kMostPorts) return fail_evaluate(error, 0x1d);
    for (NSUInteger i = 0; i < count; ++i) {
      const hexane_memory_surface* surface = ((_ANEIOSurfaceObject*)[request->surfaces[side] objectAtIndex:i])->surface;
      const NSUInteger symbol = [[request->indices[side] objectAtIndex:i] unsignedIntegerValue];
      if (symbol >= count || bases[side][symbol]) return fail_evaluate(error, 0x1d);
      const hexane_memory_surface* first = ((_ANEIOSurfaceObject*)[request->surfaces[side] objectAtIndex:0])->surface;
      if (get(&equal_surfaces) && surface->bytes != first->bytes) return fail_evaluate(error, 0x1d);
      if (surface->bytes < fake_program_port(program, side, symbol).bytes) return fail_evaluate(error, 0x1d);
      if (__atomic_load_n(&surface->locks, __ATOMIC_ACQUIRE) != 0) return fail_evaluate(error, 0x1);
      bases[side][symbol] = surface->base;
    }
  }
  char why[256];
  if (get(&idle) || fake_program_run(program, bases[0], bases[1], why, sizeof why)) return true;
  return fail(error, @"com.apple.appleneuralengine", 8, [NSString stringWithUTF8String:why]);
}
@end
