#include "device/ane_device.h"

#include <dlfcn.h>

#include "device/memory_surface.h"
#include "device/surface.h"

namespace hexane::device {
namespace {

#define HEXANE_ANE_FUNCTIONS(X) \
  X(open)                       \
  X(close)                      \
  X(count)                      \
  X(probe)                      \
  X(methods)                    \
  X(purge)                      \
  X(attributes)                 \
  X(compile)                    \
  X(find) X(load) X(unload) X(free) X(num_inputs) X(num_outputs) X(port_at) X(bind) X(unbind) X(evaluate)

// The functions of the library, which stays open.
struct Library {
#define HEXANE_ANE_MEMBER(name) decltype(&hexane_ane_##name) name;
  HEXANE_ANE_FUNCTIONS(HEXANE_ANE_MEMBER)
#undef HEXANE_ANE_MEMBER

  explicit Library(const std::string& path) {
    void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) throw DeviceError("open", 0, ::dlerror(), "");
#define HEXANE_ANE_FIND(name) name = symbol<decltype(name)>(library, "hexane_ane_" #name);
    HEXANE_ANE_FUNCTIONS(HEXANE_ANE_FIND)
#undef HEXANE_ANE_FIND
  }

  template <typename Function>
  static Function symbol(void* library, const char* name) {
    void* const found = ::dlsym(library, name);
    if (!found) throw DeviceError("open", 0, ::dlerror(), "");
    return reinterpret_cast<Function>(found);
  }
};

static_assert(kNoAnswer == HEXANE_ANE_NO_ANSWER);

[[noreturn]] void raise(const hexane_ane_error& error) {
  throw DeviceError(error.stage, error.code, error.text, error.hint);
}

template <typename Result>
Result checked(Result result, const hexane_ane_error& error) {
  if (!result) raise(error);
  return result;
}

// Surfaces are made in C++, so all that the library asks of one is its size.
#ifdef __APPLE__
constexpr const hexane_ane_surfaces* kSurfaces = nullptr;
#else
constexpr hexane_ane_surfaces kMemorySurfaces = {
    .create = nullptr,
    .release = nullptr,
    .base = nullptr,
    .bytes = [](void* surface) { return static_cast<hexane_memory_surface*>(surface)->bytes; },
    .lock = nullptr,
    .unlock = nullptr,
};
constexpr const hexane_ane_surfaces* kSurfaces = &kMemorySurfaces;
#endif

hexane_ane_setup c_setup(const AneSetup& setup) {
  return {.framework = setup.framework.empty() ? nullptr : setup.framework.c_str(),
          .find_class = nullptr,
          .surfaces = kSurfaces,
          .compile_limit = setup.compile_limit,
          .load_limit = setup.load_limit,
          .load_retry_ms = setup.load_retry_ms,
          .build_limit_ms = setup.build_limit_ms,
          .evaluate_limit_ms = setup.evaluate_limit_ms,
          .least_surface_bytes = 0};
}

std::vector<hexane_ane_file> c_files(std::span<const WeightFile> files) {
  std::vector<hexane_ane_file> result;
  for (const WeightFile& file : files) result.push_back({file.name.c_str(), file.bytes.data(), file.bytes.size()});
  return result;
}

// Objects that programs and requests keep alive.
struct Opened {
  explicit Opened(const AneSetup& setup) : library(setup.library), limits(setup) {
    const hexane_ane_setup given = c_setup(setup);
    hexane_ane_error error;
    ane = checked(library.open(&given, &error), error);
  }
  ~Opened() { library.close(ane); }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

  const Library library;
  const AneSetup limits;
  hexane_ane* ane;
};

class AneRequest final : public Request {
 public:
  AneRequest(std::shared_ptr<const Opened> opened, hexane_ane_program* program,
             std::vector<std::shared_ptr<Surface>> surfaces)
      : opened_(std::move(opened)), surfaces_(std::move(surfaces)) {
    std::vector<void*> handles;
    for (const auto& surface : surfaces_) handles.push_back(surface->handle());
    hexane_ane_error error;
    request_ = checked(opened_->library.bind(program, handles.data(), &error), error);
  }
  ~AneRequest() override {
    if (!opened_->library.unbind(request_)) new std::vector(std::move(surfaces_));  // never freed
  }

  void evaluate(uint32_t qos) override {
    hexane_ane_error error;
    if (!opened_->library.evaluate(request_, qos, &error)) [[unlikely]]
      raise(error);
  }

 private:
  const std::shared_ptr<const Opened> opened_;
  std::vector<std::shared_ptr<Surface>> surfaces_;
  hexane_ane_request* request_;
};

class AneProgram final : public Program {
 public:
  AneProgram(std::shared_ptr<const Opened> opened, hexane_ane_program* program)
      : opened_(std::move(opened)), program_(program) {}
  ~AneProgram() override { opened_->library.free(program_); }

  void load(uint32_t qos) override {
    hexane_ane_error error;
    checked(opened_->library.load(program_, qos, &error), error);
    if (is_loaded_) return;
    is_loaded_ = true;
    const size_t num_inputs = opened_->library.num_inputs(program_);
    const size_t num_ports = num_inputs + opened_->library.num_outputs(program_);
    inputs_.clear();
    outputs_.clear();
    for (size_t i = 0; i < num_ports; ++i) {
      const hexane_ane_port port = opened_->library.port_at(program_, i);
      (i < num_inputs ? inputs_ : outputs_)
          .push_back({.name = port.name,
                      .dtype = dtype_from_name(port.dtype),
                      .shape = {port.shape[0], port.shape[1], port.shape[2], port.shape[3]},
                      .row_stride = port.row_stride,
                      .plane_stride = port.plane_stride,
                      .batch_stride = port.batch_stride});
    }
  }

  void unload() override {
    is_loaded_ = false;
    hexane_ane_error error;
    checked(opened_->library.unload(program_, &error), error);
  }

  void purge() override {
    hexane_ane_error error;
    checked(opened_->library.purge(program_, &error), error);
  }

  std::string attributes(uint32_t qos) override {
    std::string result;
    const auto keep = [](void* context, const char* text) { static_cast<std::string*>(context)->assign(text); };
    hexane_ane_error error;
    checked(opened_->library.attributes(program_, qos, keep, &result, &error), error);
    return result;
  }

  const std::vector<Port>& inputs() const override { return of_loaded(inputs_); }
  const std::vector<Port>& outputs() const override { return of_loaded(outputs_); }

  std::unique_ptr<Request> request(std::span<const std::shared_ptr<Surface>> inputs,
                                   std::span<const std::shared_ptr<Surface>> outputs) override {
    return std::make_unique<AneRequest>(opened_, program_,
                                        join_surfaces(inputs, outputs, this->inputs().size(), this->outputs().size()));
  }

 private:
  const std::vector<Port>& of_loaded(const std::vector<Port>& ports) const {
    if (!is_loaded_) throw DeviceError("bind", 0, "the program is not loaded", "load it first");
    return ports;
  }

  const std::shared_ptr<const Opened> opened_;
  hexane_ane_program* const program_;
  std::vector<Port> inputs_, outputs_;
  bool is_loaded_ = false;
};

class AneDevice final : public Device {
 public:
  explicit AneDevice(const AneSetup& setup) : opened_(std::make_shared<Opened>(setup)) {}

  std::string name() const override { return "ane"; }

  std::unique_ptr<Program> compile(std::string_view mil, std::span<const WeightFile> weights, uint32_t qos) override {
    const std::vector<hexane_ane_file> files = c_files(weights);
    hexane_ane_error error;
    return std::make_unique<AneProgram>(
        opened_,
        checked(opened_->library.compile(opened_->ane, mil.data(), mil.size(), files.data(), files.size(), qos, &error),
                error));
  }

  std::unique_ptr<Program> find(std::string_view mil, std::span<const WeightFile> weights) override {
    const std::vector<hexane_ane_file> files = c_files(weights);
    hexane_ane_error error;
    hexane_ane_program* const found =
        opened_->library.find(opened_->ane, mil.data(), mil.size(), files.data(), files.size(), &error);
    if (!found && error.code == HEXANE_ANE_NOT_KEPT) return nullptr;
    return std::make_unique<AneProgram>(opened_, checked(found, error));
  }

  Counters counters() const override {
    const hexane_ane_counters now = opened_->library.count();
    return {.compiled = now.compiled,
            .compile_limit = opened_->limits.compile_limit,
            .loaded = now.loaded,
            .load_limit = opened_->limits.load_limit,
            .compiles_in_loads = now.compiles_in_loads};
  }

 private:
  const std::shared_ptr<const Opened> opened_;
};

}  // namespace

std::unique_ptr<Device> ane_device(const AneSetup& setup) { return std::make_unique<AneDevice>(setup); }

namespace {

std::vector<AneFinding> collect(const AneSetup& setup, decltype(&hexane_ane_probe) Library::*list) {
  const Library library(setup.library);
  const hexane_ane_setup given = c_setup(setup);
  std::vector<AneFinding> findings;
  const auto add = [](void* context, const char* kind, const char* name, const char* found, const char* need) {
    static_cast<std::vector<AneFinding>*>(context)->push_back({kind, name, found, need});
  };
  hexane_ane_error error;
  checked((library.*list)(&given, add, &findings, &error), error);
  return findings;
}

}  // namespace

std::vector<AneFinding> probe_ane(const AneSetup& setup) { return collect(setup, &Library::probe); }

std::vector<AneFinding> ane_methods(const AneSetup& setup) { return collect(setup, &Library::methods); }

}  // namespace hexane::device
