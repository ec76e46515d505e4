// driver LIBRARY FRAMEWORK THREADS CALLS PLAN...: compiles a program of each plan for the stand-in, through the Device
// of the core, runs them from many threads at once, and compares results with those of the plan itself. Then counts
// what one call allocates, and with IDLE in the environment measures one with nothing to compute, which takes long.
// Prints one line for each of the three.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>

#include "core/file.h"
#include "device/ane_device.h"
#include "device/surface.h"
#include "fake_ane.h"
#include "plan/reader.h"
#include "run/context.h"

using namespace hexane;

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HEXANE_THREAD_SANITIZER
#endif
#endif

namespace {
thread_local uint64_t num_allocations = 0;
}

// ThreadSanitizer has an allocator of its own, and times nobody wants.
#ifdef HEXANE_THREAD_SANITIZER
constexpr bool kCounts = false;
#else
constexpr bool kCounts = true;
extern "C" void* __libc_malloc(size_t);
extern "C" void* __libc_calloc(size_t, size_t);
extern "C" void* malloc(size_t bytes) {
  ++num_allocations;
  return __libc_malloc(bytes);
}
extern "C" void* calloc(size_t count, size_t bytes) {
  ++num_allocations;
  return __libc_calloc(count, bytes);
}
#endif

namespace {

constexpr uint32_t kQos = 21;

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

template <typename Function>
Function symbol(void* library, const char* name) {
  return reinterpret_cast<Function>(::dlsym(library, name));
}

// A plan, the program that the device has of it, and what it gives for inputs of one seed.
struct Model {
  // finds: the device keeps the program of an earlier compile.
  explicit Model(device::Device& ane, const std::string& path, bool finds = false)
      : bytes(std::make_shared<Memory>(read_file(path, sizeof(PlanHeader), plan::check_start))),
        plan(plan::read_plan({bytes->data(), bytes->size()})),
        direct(run::Context::make(std::make_shared<run::Image>(plan, bytes, 1))),
        program(make(ane, "program(1.3)\n" + path, finds)) {
    program->load(kQos);
  }

  static std::unique_ptr<device::Program> make(device::Device& ane, const std::string& mil, bool finds) {
    auto found = finds ? ane.find(mil, {}) : nullptr;
    return found ? std::move(found) : ane.compile(mil, {}, kQos);
  }

  // Where the plan has the port of that name: inputs, then outputs.
  size_t index_of(const std::string& name) const {
    size_t index = 0;
    for (const auto& side : {plan.inputs, plan.outputs})
      for (const PlanPort& port : side) {
        if (plan.string(port.name) == name) return index;
        ++index;
      }
    fail("driver", "no port ", name);
  }

  std::shared_ptr<Memory> bytes;
  const plan::Plan plan;
  std::shared_ptr<run::Context> direct;
  std::unique_ptr<device::Program> program;
};

device::Layout layout_of(const device::Port& port) {
  return {port.dtype,
          {port.shape.begin(), port.shape.end()},
          {static_cast<int64_t>(port.batch_stride), static_cast<int64_t>(port.plane_stride),
           static_cast<int64_t>(port.row_stride), info(port.dtype).bits / 8}};
}

// One thread's use of a model: surfaces of its own, bound once.
struct Use {
  explicit Use(Model& model) : model(model), packed(model.plan.inputs.size() + model.plan.outputs.size()) {
    for (auto* ports : {&model.program->inputs(), &model.program->outputs()})
      for (const device::Port& port : *ports) {
        surfaces.push_back(std::make_shared<device::Surface>(port.bytes()));
        layouts.push_back(layout_of(port));
        places.push_back(model.index_of(port.name));
        uint64_t elements = 1;
        for (const int64_t extent : port.shape) elements *= static_cast<uint64_t>(extent);
        packed[places.back()].resize(elements * static_cast<uint64_t>(info(port.dtype).bits) / 8);
      }
    num_inputs = model.program->inputs().size();
    request = model.program->request(std::span(surfaces).first(num_inputs), std::span(surfaces).subspan(num_inputs));
  }

  // fp16 between 0 and 2, by the seed.
  void fill(uint32_t seed) {
    for (size_t i = 0; i < num_inputs; ++i) {
      std::vector<std::byte>& bytes = packed[places[i]];
      for (size_t at = 0; at + 1 < bytes.size(); at += 2) {
        seed = seed * 1664525 + 1013904223;
        const auto bits = static_cast<uint16_t>(seed >> 18);  // 0 .. 0x3fff
        std::memcpy(bytes.data() + at, &bits, 2);
      }
      device::write(*surfaces[i], layouts[i], device::all_channels(layouts[i]), layouts[i].dtype, bytes.data());
    }
  }

  bool check(std::mutex& direct_runs) {
    std::vector<std::vector<std::byte>> want = packed;
    {
      const std::lock_guard lock(direct_runs);
      run::Context::Ports ports;
      for (auto& bytes : want) ports.addresses.push_back(bytes.data());
      ports.id = model.direct->new_id();
      model.direct->run(ports);
    }
    for (size_t i = num_inputs; i < surfaces.size(); ++i) {
      std::vector<std::byte>& got = packed[places[i]];
      device::read(*surfaces[i], layouts[i], device::all_channels(layouts[i]), layouts[i].dtype, got.data());
      if (got != want[places[i]]) return false;
    }
    return true;
  }

  Model& model;
  std::vector<std::vector<std::byte>> packed;              // in the order of the plan's ports
  std::vector<std::shared_ptr<device::Surface>> surfaces;  // in the order of the device's, as what follows
  std::vector<device::Layout> layouts;
  std::vector<size_t> places;
  size_t num_inputs = 0;
  std::unique_ptr<device::Request> request;
};

int drive(int argc, char** argv) {
  if (argc < 6) fail("driver", "need LIBRARY FRAMEWORK THREADS CALLS PLAN...");
  const int num_threads = std::atoi(argv[3]), num_calls = std::atoi(argv[4]);
  void* const framework = ::dlopen(argv[2], RTLD_NOW | RTLD_GLOBAL);
  if (!framework) fail("driver", ::dlerror());
  const auto accept = symbol<decltype(&fake_ane_accept)>(framework, "fake_ane_accept");
  const auto set = symbol<decltype(&fake_ane_set)>(framework, "fake_ane_set");
  set("grammar", 0);  // the texts of these programs are paths of plans
  const fake_ane_lower lower = [](void* context, const char* folder, fake_ane_reply* reply) {
    const std::string text = read_text(std::string(folder) + "/model.mil");
    const std::string plan = read_text(text.substr(text.find('\n') + 1));
    reinterpret_cast<decltype(&fake_ane_accept)>(context)(reply, plan.data(), plan.size());
  };
  symbol<decltype(&fake_ane_set_lower)>(framework, "fake_ane_set_lower")(lower, reinterpret_cast<void*>(accept));

  const auto ane = device::ane_device(
      {.library = argv[1], .framework = argv[2], .compile_limit = 119, .load_limit = 128, .evaluate_limit_ms = 30000});
  std::vector<std::unique_ptr<Model>> models;
  for (int i = 5; i < argc; ++i) models.push_back(std::make_unique<Model>(*ane, argv[i]));

  std::atomic<uint64_t> num_wrong = 0;
  std::vector<std::mutex> direct_runs(models.size());
  std::vector<std::thread> threads;
  for (int t = 0; t < num_threads; ++t)
    threads.emplace_back([&, t] {
      std::vector<Use> uses;
      for (const auto& model : models) uses.emplace_back(*model);
      for (int call = 0; call < num_calls; ++call) {
        const size_t which = static_cast<size_t>(t + call) % uses.size();
        uses[which].fill(static_cast<uint32_t>(t * num_calls + call));
        uses[which].request->evaluate(kQos);
        if (call % 16 == 0 && !uses[which].check(direct_runs[which])) ++num_wrong;
      }
      // One more program of the same text, compiled or found, run and let go while the others run.
      const size_t which = static_cast<size_t>(t) % models.size();
      Model own(*ane, argv[5 + which], static_cast<size_t>(t) >= models.size());
      std::mutex alone;
      Use use(own);
      use.fill(static_cast<uint32_t>(t));
      use.request->evaluate(kQos);
      if (!use.check(alone)) ++num_wrong;
    });
  for (std::thread& thread : threads) thread.join();
  std::printf("wrong results: %llu\n", static_cast<unsigned long long>(num_wrong));
  if (num_wrong || !kCounts) return num_wrong != 0;

  Use use(*models[0]);
  use.request->evaluate(kQos);
  const uint64_t before = num_allocations;
  for (int i = 0; i < 1000; ++i) use.request->evaluate(kQos);
  const uint64_t allocations = num_allocations - before;
  std::printf("allocations in 1000 calls: %llu\n", static_cast<unsigned long long>(allocations));

  if (!std::getenv("IDLE")) return 0;
  set("idle", 1);
  std::vector<double> times;
  for (int i = 0; i < 21; ++i) {
    const auto start = std::chrono::steady_clock::now();
    for (int k = 0; k < 10000; ++k) use.request->evaluate(kQos);
    times.push_back(std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / 10000);
  }
  std::nth_element(times.begin(), times.begin() + 10, times.end());
  std::printf("ns of an idle call: %.0f\n", times[10]);
  return 0;
}

}  // namespace

int main(int argc, char** argv) try { return drive(argc, argv); } catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
