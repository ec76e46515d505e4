// The null device asks for the order of calls that the engine does; a device's error has its stage, code and hint.
#include <array>
#include <string>

#include "check.h"
#include "device/ane_device.h"
#include "device/device.h"

using namespace hexane;
using namespace hexane::device;

template <typename Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "";
}

int main() {
  const Port x{.name = "x",
               .dtype = DType::kFp16,
               .shape = {2, 3, 4, 5},
               .row_stride = 64,
               .plane_stride = 256,
               .batch_stride = 1024};
  CHECK(x.bytes() == 2048);
  const auto device = null_device({x}, {x});
  const auto program = device->compile("program(1.3)", {}, 21);
  CHECK(refusal([&] { program->inputs(); }) == "[device bind] the program is not loaded; load it first");
  program->load(21);
  CHECK(program->inputs() == std::vector<Port>{x});
  const std::array<std::shared_ptr<Surface>, 1> one;
  CHECK(refusal([&] { program->request(one, {}); }) == "[device bind] got 1 and 0 surfaces, need 1 and 1");
  program->request(one, one)->evaluate(21);

  CHECK(refusal([&] { ane_device({.library = "/nowhere/libhexane_ane"}); }).starts_with("[device open] /nowhere"));

  const DeviceError error("compile", 8, "the text has no main", "name a function main");
  CHECK(std::string(error.what()) == "[device compile] the text has no main; name a function main");
  CHECK(error.stage == "compile" && error.code == 8 && error.hint == "name a function main");
  return checks_failed();
}
