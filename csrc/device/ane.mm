// Opens the framework, compiles, loads, unloads. The order is the framework's: descriptor, model, its identifier, the
// files in the folder of that name, compile, load.
#import "device/ane.h"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <mutex>

using namespace hexane::ane;

namespace {

// Compiles and loads go through one service, which stalls for minutes after many requests at once.
std::mutex compiling, loading;
std::mutex spending;  // guards the count of compiles, which loads raise too
std::atomic<uint64_t> num_compiled, num_loaded, num_compiled_in_loads;
std::atomic<bool> forked;

// Known error texts of the framework.
struct Advice {
  const char *text, *hint;
};
constexpr Advice kAdvice[] = {
    {"status=0x1d", "a surface is too small for its port, bound to another port, or not as large as the others of its "
                    "side"},
    {"status=0x12",
     "the framework does not map these surfaces for the engine: other processes may hold too much of its "
     "memory"},
    {"status=0x16", "an argument of the request is wrong"},
    {"ANECCompile() FAILED", "the engine's compiler rejects an op or argument; log show --last 1m --predicate 'process "
                             "== \"aned\"' says which"},
    {"InvalidMILProgram", "the MIL text does not parse"},
    {"hash mismatch", "the folder of the program has an extra file, or several weight files: write one weight file"},
    {"0x20004", "too many programs are loaded, or this one is too large"},
    {"0xe00002e2", "the program is not signed, or this process lacks an entitlement"},
};

// The meaning of the framework's error codes, in its own domain, and what to do. Source: a decompilation of the
// framework of iOS 18.2; users have reported code 47 on macOS 27. In other domains the same codes mean other things.
constexpr char kDomain[] = "com.apple.appleneuralengine";
struct CodeAdvice {
  long code;
  const char* hint;
};
constexpr CodeAdvice kCodes[] = {
    {1, "only programs with an entitlement of Apple's may do that"},
    {2, "real-time priority needs an entitlement of Apple's: ask for another quality of service"},
    {3, "the service or the engine did not answer in time: try again; if it fails again, restart the machine"},
    {4, "the driver could not make the program: close other programs of the engine, or make this one smaller"},
    {5, "too many requests are under way: wait for some before more are sent"},
    {6, "the driver could not load the program: unload others, or make this one smaller"},
    {7, "the process has no signature: sign the Python that runs it, codesign -s - PATH"},
    {9, "the service cannot read the program's files: use a folder for temporary files that others may read"},
    {10, "the service considers the program damaged: purge it and compile it again"},
    {11, "the key of the program is unknown: compile it again"},
    {13, "the surfaces could not be mapped: one is too small, or too many programs keep theirs; unload some, and start "
         "the machine anew if that fails too"},
    {14, "the surfaces could not be unmapped: start a new process"},
    {16, "the program's files are gone: compile it again"},
    {17, "the service does not know the program: compile it again"},
    {22, "this is a virtual machine whose host does not offer the engine: run on the CPU instead"},
    {23, "the program is not loaded any more: load it again"},
    {24, "the service has no such program: compile it again"},
    {25, "this engine or system does not have what was asked for"},
    {26, "an argument of the request is wrong"},
    {47, "the engine aborted the request: the program may be too large for it; make it smaller"},
};

// Limits of the text of nested errors, whose outermost error says little: the number of causes, and the bytes of each.
constexpr int kMostCauses = 4;
constexpr size_t kMostOfCause = 160;

// Returns the bytes of the longest prefix of a UTF-8 text, at most `most`, that ends between characters.
size_t whole_letters(const char* text, size_t most) {
  size_t bytes = strnlen(text, most);
  if (text[bytes])
    while (bytes && (static_cast<unsigned char>(text[bytes]) & 0xc0) == 0x80) --bytes;
  return bytes;
}

NSError* cause_of(NSError* failure) {
  NSError* cause = [[failure userInfo] objectForKey:NSUnderlyingErrorKey];
  return [cause isKindOfClass:[NSError class]] ? cause : nil;
}

bool has_engine(const hexane_ane_setup& setup) {
  const Class info = find_class(setup, kDeviceInfo);
  const Method asks = info ? class_getClassMethod(info, sel_registerName(kHasEngine)) : nullptr;
  if (!asks) return true;  // the framework cannot be asked
  return reinterpret_cast<bool (*)(id, SEL)>(method_getImplementation(asks))(info, sel_registerName(kHasEngine));
}

bool find_all(hexane_ane* ane, hexane_ane_error* error) {
  for (int i = 0; i < kNumClasses; ++i) {
    ane->classes[i] = find_class(ane->setup, kClassNames[i]);
    if (!ane->classes[i]) return fail(error, "open", "the framework has no class %s", kClassNames[i]);
  }
  for (const AneSelector& selector : kSelectors) {
    const Method method = method_of(ane->classes[selector.receiver], selector);
    const char* found = method ? method_getTypeEncoding(method) : "no such method";
    if (strcmp(found, selector.encoding) == 0) continue;
    fail(error, "open", "%c[%s %s]: got %s, need %s", selector.of_class ? '+' : '-', kClassNames[selector.receiver],
         selector.name, found, selector.encoding);
    advise(error, "this version of macOS has another interface than Hexane knows; 'hexane doctor' lists all of it");
    return false;
  }
  ane->asks_service = true;
  for (const AneSelector& selector : kKept) {
    const Method method = method_of(ane->classes[selector.receiver], selector);
    if (!method || strcmp(method_getTypeEncoding(method), selector.encoding) != 0) ane->asks_service = false;
  }
  return has_engine(ane->setup) || fail(error, "open", "this machine has no Neural Engine");
}

// The text and the files in the form that the framework takes.
NSDictionary* weights_of(const hexane_ane_file* files, size_t num_files, hexane_ane_error* error) {
  NSMutableDictionary* weights = [NSMutableDictionary dictionary];
  for (size_t i = 0; i < num_files; ++i) {
    NSString* path = blob_path(files[i].name, error);
    if (!path) return nil;
    if ([weights objectForKey:path]) {
      fail(error, "files", "got two weight files of the name %s", files[i].name);
      return nil;
    }
    NSData* data = [NSData dataWithBytes:files[i].data length:files[i].bytes];
    [weights setObject:@{@"offset" : @0, @"data" : data} forKey:path];
  }
  return weights;
}

// Makes the framework's model of the text and the weights, and the folder that holds them.
bool describe(hexane_ane_program* program, NSData* text, NSDictionary* weights, hexane_ane_error* error) {
  const Class* classes = program->ane.classes;
  id descriptor = [(id<AneDescriptorClass>)classes[kDescriptor] modelWithMILText:text weights:weights optionsPlist:nil];
  if (!descriptor) return fail(error, "compile", "the framework makes no descriptor of this text and these weights");
  id<AneModel> model = [(id<AneModelClass>)classes[kModel] inMemoryModelWithDescriptor:descriptor];
  if (!model) return fail(error, "compile", "the framework makes no model of the descriptor");
  program->model = [(id)model retain];
  program->text = [text retain];
  program->weights = [weights retain];
  program->folder = [enter_folder([model hexStringIdentifier], error) retain];
  return program->folder != nil;
}

bool ask(void* given, uint32_t, hexane_ane_error*) {
  auto* program = static_cast<hexane_ane_program*>(given);
  program->is_kept = [(id<AneModel>)program->model compiledModelExists];
  return true;
}

bool purge(void* given, uint32_t, hexane_ane_error*) {
  [(id<AneModel>)static_cast<hexane_ane_program*>(given)->model purgeCompiledModel];
  return true;
}

// Asks the service whether it keeps the program. Returns false and fills the error if the service does not answer.
bool ask_service(hexane_ane_program* program, const char* stage, hexane_ane_error* error) {
  if (!program->ane.asks_service) return true;
  return within(program, {stage, ask, program, 0, program->ane.setup.evaluate_limit_ms}, error);
}

bool write_files(hexane_ane_program* program, const char* stage, hexane_ane_error* error) {
  return guarded(error, stage, [&] { return put_files(program->folder, program->text, program->weights, error); });
}

// Counts one more compile of this process. Returns false and fills the error at the limit.
bool spend(std::atomic<uint64_t>* count, const hexane_ane_setup& setup, const char* stage, hexane_ane_error* error) {
  const std::lock_guard lock(spending);
  const uint32_t limit = setup.compile_limit;
  if (!limit || num_compiled + num_compiled_in_loads < limit) {
    ++*count;
    return true;
  }
  fail(error, stage, "this process has compiled %u programs, and further compiles may fail without an error", limit);
  advise(error, "compile in a new process");
  return false;
}

bool compile(void* program, uint32_t qos, hexane_ane_error* error) {
  const id<AneModel> model = static_cast<hexane_ane_program*>(program)->model;
  NSError* failure = nil;
  return [model compileWithQoS:qos options:@{} error:&failure] || fail(error, "compile", failure);
}

bool load(void* program, uint32_t qos, hexane_ane_error* error) {
  const id<AneModel> model = static_cast<hexane_ane_program*>(program)->model;
  NSError* failure = nil;
  return [model loadWithQoS:qos options:@{} error:&failure] || fail(error, "load", failure);
}

bool unload(void* program, uint32_t qos, hexane_ane_error* error) {
  const id<AneModel> model = static_cast<hexane_ane_program*>(program)->model;
  NSError* failure = nil;
  return [model unloadWithQoS:qos error:&failure] || fail(error, "unload", failure);
}

// If the service has not kept the program, the load compiles it from its files, so the files are written first.
bool load_once(hexane_ane_program* program, bool is_first, uint32_t qos, hexane_ane_error* error) {
  const Turn turn(program->folder);
  const hexane_ane_setup& setup = program->ane.setup;
  if (!ask_service(program, "load", error)) return false;
  if (!program->is_kept && !spend(&num_compiled_in_loads, setup, "load", error)) return false;
  if ((!program->is_kept || !is_first) && !write_files(program, "load", error)) return false;
  return within(program, {"load", load, program, qos, setup.build_limit_ms}, error);
}

// Loads a program that is not loaded.
bool load_program(hexane_ane_program* program, uint32_t qos, hexane_ane_error* error) {
  const hexane_ane_setup& setup = program->ane.setup;
  if (setup.load_limit && num_loaded >= setup.load_limit) {
    fail(error, "load", "this process has %u programs loaded, as many as the engine takes", setup.load_limit);
    advise(error, "unload or free one");
    return false;
  }
  if (load_once(program, true, qos, error)) return true;
  if (program->stuck) return false;
  usleep(setup.load_retry_ms * 1000);
  return load_once(program, false, qos, error);
}

void count_load(hexane_ane_program* program, uint32_t qos) {
  ++num_loaded;
  program->qos = qos;
  program->loaded = ++program->num_loads;
}

// Unloads the program and deletes its folder.
bool unload(hexane_ane_program* program, hexane_ane_error* error) {
  if (!program->loaded.exchange(0)) return true;
  --num_loaded;
  const Turn turn(program->folder);
  return within(program, {"unload", unload, program, program->qos, program->ane.setup.evaluate_limit_ms}, error);
}

// Releases all of a program but the struct, which requests may still read.
void discard(hexane_ane_program* program) {
  const std::lock_guard lock(loading);
  hexane_ane_error ignored;
  unload(program, &ignored);
  if (program->stuck) return;
  guarded(&ignored, "unload", [&] {
    [program->model release];
    if (program->folder) leave_folder(program->folder);
    [program->folder release];
    [program->text release];
    [program->weights release];
    return true;
  });
  release(program);
}

// Makes a program of the text and the weights, with its folder. finish(program) makes it loadable.
template <typename Finish>
hexane_ane_program* make(hexane_ane* ane, const char* mil, size_t mil_bytes, const hexane_ane_file* files,
                         size_t num_files, hexane_ane_error* error, Finish finish) {
  auto* program = new hexane_ane_program{.ane = *ane};
  const bool done = guarded(error, "compile", [&] {
    NSData* text = [NSData dataWithBytes:mil length:mil_bytes];
    NSDictionary* weights = weights_of(files, num_files, error);
    return weights && describe(program, text, weights, error) && finish(program);
  });
  if (done) return program;
  discard(program);
  return nullptr;
}

}  // namespace

namespace hexane::ane {

bool fail(hexane_ane_error* error, const char* stage, const char* format, ...) {
  *error = {};
  snprintf(error->stage, sizeof error->stage, "%s", stage);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(error->text, sizeof error->text, format, arguments);
  va_end(arguments);
  return false;
}

bool fail(hexane_ane_error* error, const char* stage, NSError* failure) {
  if (!failure) return fail(error, stage, "the framework failed and says nothing");
  fail(error, stage, "%s", "");
  error->code = [failure code];
  NSError* cause = failure;
  bool by_text = false;
  for (int depth = 0; cause && depth < kMostCauses; ++depth, cause = cause_of(cause)) {
    const size_t used = strlen(error->text);
    snprintf(error->text + used, sizeof error->text - used, "%s%s %ld: ", depth ? "; caused by " : "",
             [[cause domain] UTF8String], static_cast<long>([cause code]));
    const size_t begin = strlen(error->text), room = sizeof error->text - 1 - begin;
    const char* said = [[cause localizedDescription] UTF8String];
    // The text of an error with a cause leaves room for the text of the cause.
    const size_t bytes = said ? whole_letters(said, cause_of(cause) ? std::min(room, kMostOfCause) : room) : 0;
    snprintf(error->text + begin, room + 1, "%.*s", static_cast<int>(bytes), said ? said : "");
    // The hint belongs to the deepest known code, or to the last known error text, which takes precedence.
    if (!by_text && !cause_of(cause) && [[cause domain] isEqualToString:@(kDomain)])
      for (const CodeAdvice& known : kCodes)
        if (known.code == [cause code]) advise(error, known.hint);
    // The text of an error is more specific than its code.
    for (const Advice& advice : kAdvice)
      if (strstr(error->text + used, advice.text)) {
        advise(error, advice.hint);
        by_text = true;
      }
  }
  return false;
}

Method method_of(Class found, const AneSelector& selector) {
  const SEL name = sel_registerName(selector.name);
  return selector.of_class ? class_getClassMethod(found, name) : class_getInstanceMethod(found, name);
}

Class find_class(const hexane_ane_setup& setup, const char* name) {
  return setup.find_class ? static_cast<Class>(setup.find_class(name)) : static_cast<Class>(objc_getClass(name));
}

bool open_framework(const hexane_ane_setup& setup, hexane_ane_error* error) {
  const char* path = setup.framework ? setup.framework : kFramework;
  if (dlopen(path, RTLD_NOW | RTLD_GLOBAL)) return true;
  fail(error, "open", "there is no Neural Engine framework: %s", dlerror());
  advise(error, "the CPU executor runs programs without an engine");
  return false;
}

void advise(hexane_ane_error* error, const char* hint) { snprintf(error->hint, sizeof error->hint, "%s", hint); }

bool refuse_fork(hexane_ane_error* error) {
  return forked && !fail(error, "open", "the engine's service does not know a process that was forked");
}

void release(hexane_ane_program* program) {
  if (--program->references) return;
  free_ports(&program->ports);
  delete program;
}

}  // namespace hexane::ane

hexane_ane* hexane_ane_open(const hexane_ane_setup* setup, hexane_ane_error* error) {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { forked = true; }); });
  if (refuse_fork(error) || !open_framework(*setup, error)) return nullptr;
  const hexane_ane_surfaces* surfaces = setup->surfaces ? setup->surfaces : system_surfaces();
  if (!surfaces) {
    fail(error, "open", "this system has no IOSurface, and no other surfaces were given");
    return nullptr;
  }
  auto* ane = new hexane_ane{.setup = *setup, .surfaces = *surfaces, .classes = {}};
  const bool done = guarded(error, "open", [&] {
    sweep_folders();
    return find_all(ane, error);
  });
  if (done) return ane;
  delete ane;
  return nullptr;
}

void hexane_ane_close(hexane_ane* ane) { delete ane; }

hexane_ane_counters hexane_ane_count(void) {
  return {.compiled = num_compiled, .loaded = num_loaded, .compiles_in_loads = num_compiled_in_loads};
}

hexane_ane_program* hexane_ane_compile(hexane_ane* ane, const char* mil, size_t mil_bytes, const hexane_ane_file* files,
                                       size_t num_files, uint32_t qos, hexane_ane_error* error) {
  if (refuse_fork(error)) return nullptr;
  const std::lock_guard lock(compiling);
  return make(ane, mil, mil_bytes, files, num_files, error, [&](hexane_ane_program* program) {
    const Turn turn(program->folder);
    const hexane_ane_setup& setup = program->ane.setup;
    if (!ask_service(program, "compile", error)) return false;
    if (!spend(&num_compiled, setup, "compile", error)) return false;
    if (program->is_kept && !within(program, {"compile", purge, program, qos, setup.evaluate_limit_ms}, error))
      return false;
    program->is_kept = false;
    if (!write_files(program, "compile", error)) return false;
    if (!within(program, {"compile", compile, program, qos, setup.build_limit_ms}, error)) return false;
    program->is_kept = true;
    return true;
  });
}

hexane_ane_program* hexane_ane_find(hexane_ane* ane, const char* mil, size_t mil_bytes, const hexane_ane_file* files,
                                    size_t num_files, hexane_ane_error* error) {
  if (refuse_fork(error)) return nullptr;
  return make(ane, mil, mil_bytes, files, num_files, error, [&](hexane_ane_program* program) {
    if (!ask_service(program, "compile", error)) return false;
    if (program->is_kept) return true;
    fail(error, "compile", "the engine's service keeps no program of this text and these weights");
    error->code = HEXANE_ANE_NOT_KEPT;
    return false;
  });
}

bool hexane_ane_load(hexane_ane_program* program, uint32_t qos, hexane_ane_error* error) {
  if (refuse_fork(error)) return false;
  const std::lock_guard lock(loading);
  if (program->loaded) return true;
  if (!load_program(program, qos, error)) return false;
  const bool has_ports = program->ports.all || guarded(error, "load", [&] {
                           program->ports = read_ports([(id<AneModel>)program->model modelAttributes]);
                           return true;
                         });
  count_load(program, qos);
  hexane_ane_error ignored;
  if (!has_ports) unload(program, &ignored);
  return has_ports;
}

bool hexane_ane_unload(hexane_ane_program* program, hexane_ane_error* error) {
  if (refuse_fork(error)) return false;
  const std::lock_guard lock(loading);
  return unload(program, error);
}

bool hexane_ane_purge(hexane_ane_program* program, hexane_ane_error* error) {
  if (refuse_fork(error)) return false;
  const std::lock_guard lock(loading);
  if (!program->ane.asks_service) return fail(error, "purge", "the framework has no purgeCompiledModel");
  program->is_kept = false;
  return within(program, {"purge", purge, program, 0, program->ane.setup.evaluate_limit_ms}, error);
}

bool hexane_ane_attributes(hexane_ane_program* program, uint32_t qos, hexane_ane_text text, void* context,
                           hexane_ane_error* error) {
  if (refuse_fork(error)) return false;
  const std::lock_guard lock(loading);
  const bool was_loaded = program->loaded;
  if (!was_loaded) {
    if (!load_program(program, qos, error)) return false;
    count_load(program, qos);
  }
  const bool done = guarded(error, "load", [&] {
    text(context, [attributes_text([(id<AneModel>)program->model modelAttributes]) UTF8String]);
    return true;
  });
  hexane_ane_error ignored;
  if (!was_loaded) unload(program, &ignored);
  return done;
}

void hexane_ane_free(hexane_ane_program* program) {
  if (!program) return;
  if (forked) return release(program);
  discard(program);
}
