// context_driver THREADS CALLS PLAN...: runs contexts of every plan from many threads at once, each with states of its
// own, and compares each result with that of one thread alone. Meanwhile a thread replaces weights by themselves, and
// makes contexts and lets them go. Prints how many results are wrong.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "core/file.h"
#include "plan/reader.h"
#include "run/context.h"

using namespace hexane;

namespace {

constexpr int kCallsOfAConversation = 8;  // then the states begin anew

using Results = std::vector<std::vector<std::byte>>;

std::shared_ptr<run::Image> load(const std::string& path) {
  const auto bytes = std::make_shared<Memory>(read_file(path, sizeof(PlanHeader), plan::check_start));
  return std::make_shared<run::Image>(plan::read_plan({bytes->data(), bytes->size()}), bytes, 2);
}

// A context, and the memory of its ports.
class Caller {
 public:
  explicit Caller(const std::shared_ptr<run::Context>& context) : context_(context) {
    for (const auto side : {context_->plan().inputs, context_->plan().outputs})
      for (const PlanPort& port : side) {
        const PlanTensor& tensor = context_->plan().tensors[port.tensor];
        memory_.emplace_back(context_->plan().spaces[tensor.space].bytes, "port");
        ports_.addresses.push_back(memory_.back().data());
      }
    ports_.id = context_->new_id();
  }

  void reset() { context_->reset_state(); }

  // The outputs of a call with fp32 inputs between 0 and 1, by the seed.
  Results run(uint32_t seed) {
    const size_t num_inputs = context_->plan().inputs.size();
    for (size_t i = 0; i < num_inputs; ++i)
      for (size_t at = 0; at + sizeof(float) <= memory_[i].size(); at += sizeof(float)) {
        seed = seed * 1664525 + 1013904223;
        const float value = static_cast<float>(seed >> 8) / static_cast<float>(1 << 24);
        std::memcpy(memory_[i].data() + at, &value, sizeof value);
      }
    context_->run(ports_);
    Results results;
    for (size_t i = num_inputs; i < memory_.size(); ++i)
      results.emplace_back(memory_[i].data(), memory_[i].data() + memory_[i].size());
    return results;
  }

 private:
  const std::shared_ptr<run::Context> context_;
  std::vector<Memory> memory_;
  run::Context::Ports ports_;
};

struct Model {
  explicit Model(const std::string& path) : image(load(path)), first(run::Context::make(image)) {
    Caller alone(first->another());
    for (uint32_t call = 0; call < kCallsOfAConversation; ++call) want.push_back(alone.run(call));
  }
  const std::shared_ptr<run::Image> image;
  const std::shared_ptr<run::Context> first;
  std::vector<Results> want;
};

void replace_weights(const Model& model) {
  const plan::Plan& plan = model.image->plan();
  for (const PlanTensor& tensor : plan.tensors) {
    if (plan.kind(tensor) != "weights" || plan.string(tensor.name).empty()) continue;
    std::vector<std::byte> packed(plan::extent_bytes(tensor, plan.dtype(tensor)));
    model.first->read_contents(tensor, packed.data());
    model.image->update(tensor, packed.data());
  }
}

int drive(int argc, char** argv) {
  if (argc < 4) fail("driver", "need THREADS CALLS PLAN...");
  const int num_threads = std::atoi(argv[1]), num_calls = std::atoi(argv[2]);
  std::vector<std::unique_ptr<Model>> models;
  for (int i = 3; i < argc; ++i) models.push_back(std::make_unique<Model>(argv[i]));
  std::atomic<uint64_t> num_wrong = 0;
  std::atomic<bool> ends = false;
  std::vector<std::thread> threads;
  for (int t = 0; t < num_threads; ++t)
    threads.emplace_back([&, t] {
      std::vector<Caller> callers;
      for (const auto& model : models) callers.emplace_back(model->first->another());
      for (int call = 0; call < num_calls; ++call)
        for (size_t k = 0; k < models.size(); ++k) {
          const size_t which = (k + static_cast<size_t>(t)) % models.size();
          const auto seed = static_cast<uint32_t>(call % kCallsOfAConversation);
          if (seed == 0 && call) callers[which].reset();
          num_wrong += callers[which].run(seed) != models[which]->want[seed];
        }
    });
  std::thread writer([&] {
    for (size_t i = 0; !ends; ++i) {
      const Model& model = *models[i % models.size()];
      replace_weights(model);
      Caller late(model.first->another());
      num_wrong += late.run(0) != model.want[0];
      std::this_thread::yield();
    }
  });
  for (std::thread& thread : threads) thread.join();
  ends = true;
  writer.join();
  std::printf("wrong results of contexts: %llu\n", static_cast<unsigned long long>(num_wrong));
  return num_wrong != 0;
}

}  // namespace

int main(int argc, char** argv) try { return drive(argc, argv); } catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
