// Highway is found, links, and picks an instruction set at run time.
#include <hwy/targets.h>

#include "check.h"

int main() {
  CHECK(hwy::SupportedTargets() != 0);
  return checks_failed();
}
