"""Writes the main program and the Makefile for a generated network."""

from hexane.dtypes import dtype
from hexane.emit.plan_view import PlanView, Port


def main_program(plan: PlanView, name: str) -> str:
    upper = name.upper()
    moves = {
        side: [
            f'  if (!port_{verb}({name}_{side}({i}), {upper}_{side.upper()}_{i}_BYTES)) return failed("{side}",'
            f' "{what}");'
            for i, port in enumerate(these)
            if not port.rows
        ]
        for side, verb, what, these in (
            ("input", "read", "input.bin is too short", plan.inputs),
            ("output", "write", "output.bin cannot be written", plan.outputs),
        )
    }
    hooks = [side for side, ports in (("input", plan.inputs), ("output", plan.outputs)) if any(p.rows for p in ports)]
    lines = [
        "/* Reads the inputs from input.bin, runs the network once and writes the outputs to output.bin:",
        *(
            f" * {side} {port.text}"
            for side, ports in (("input", plan.inputs), ("output", plan.outputs))
            for port in ports
        ),
        " */",
        f'#include "../{name}.h"',
        '#include "port.h"',
        "",
        "static int failed(const char* where, const char* what) {",
        "  port_print(where);",
        '  port_print(": ");',
        "  port_print(what);",
        '  port_print("\\n");',
        "  port_exit(1);",
        "  return 1;",
        "}",
        "",
        *(line for side in hooks for line in _hook(plan.inputs if side == "input" else plan.outputs, side)),
        "int main(void) {",
        '  if (!port_open()) return failed("input.bin, output.bin", "cannot be opened");',
        f"  if ({name}_load() != HX_OK) return failed({name}_net.error.name, {name}_net.error.what);",
        *(f"  {name}_net.hooks.{side} = {side}_rows;" for side in hooks),
        *moves["input"],
        f'  if (hx_run(&{name}_net) != HX_OK) return failed("run", {name}_net.error.what);',
        *moves["output"],
        "  port_exit(0);",
        "  return 0;",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _hook(ports: list[Port], side: str) -> list[str]:
    """Returns a hook of the runtime, which returns 0 for success; the port's function returns 0 for failure."""
    pointer = "void* rows" if side == "input" else "const void* rows"
    sizes = ", ".join(str(port.rows.bytes if port.rows else 0) for port in ports)
    return [
        f"static int {side}_rows(void* context, uint32_t {side}, int32_t begin, int32_t end, {pointer}) {{",
        f"  static const size_t kRowBytes[] = {{{sizes}}};",
        "  (void)context;",
        f"  return !port_{side}({side}, begin, end, rows, (size_t)(end - begin) * kRowBytes[{side}]);",
        "}",
        "",
    ]


def pattern(plan: PlanView, name: str) -> str:
    rows = [port.rows.bytes if port.rows else 0 for port in plan.inputs]
    items = [dtype(port.dtype).bits // 8 if port.dtype in _PATTERNS else 1 for port in plan.inputs]
    kinds = [_PATTERNS.get(port.dtype, 0) for port in plan.inputs]
    text = _PATTERN_C
    for mark, values in (("ROWS", rows), ("ITEMS", items), ("FLOATS", kinds)):
        text = text.replace(f"@{mark}@", ", ".join(map(str, values)))
    return text.replace("NAME", name)


_PATTERNS = {"fp32": 1}

_PATTERN_C = """\
/* A test pattern in place of a camera or microphone. With n = (31 r + 7 i) % 256, float i of row r is n / 128 - 1; for
 * other dtypes, byte i is n. Write your driver as a file with the same function: make INPUT=app/camera.c */
#include <string.h>

#include "port.h"

int port_input(unsigned input, long begin, long end, void* to, size_t bytes) {
  static const size_t row_bytes[] = {@ROWS@}, item_bytes[] = {@ITEMS@};
  static const unsigned char is_float[] = {@FLOATS@};
  const size_t items = row_bytes[input] / item_bytes[input];
  unsigned char* at = to;
  (void)bytes;
  for (; begin < end; ++begin) {
    size_t i;
    for (i = 0; i < items; ++i, at += item_bytes[input]) {
      const unsigned n = (31u * (unsigned)begin + 7u * (unsigned)i) % 256u;
      const float x = (float)n / 128.0f - 1.0f;
      if (is_float[input])
        memcpy(at, &x, sizeof x);
      else
        *at = (unsigned char)n;
    }
  }
  return 1;
}
"""

STREAMED = """\
 * Streamed ports have no such memory. Set their hooks after NAME_load():
 *
 *   static int bring(void* context, uint32_t input, int32_t begin, int32_t end, void* to) {
 *     ...                                wait for rows [begin, end) and write them to `to`, one after the other
 *     return 0;                          anything else stops the run
 *   }
 *   NAME_net.hooks.input = bring;        for outputs: hooks.output, which receives the rows
 *
 * A run asks for each row once, in order, when its steps need it. */"""


def makefile(name: str, plan: PlanView, cmsis_nn: bool) -> str:
    left_out = "" if plan.codecs else " -DHX_NO_BLOCKS"
    if not plan.streams:
        left_out += " -DHX_NO_STREAMED_PORTS"
    if plan.only_clamps():
        left_out += " -DHX_ONLY_CLAMPS=1"
    if not plan.used()[1]:
        left_out += " -DHX_NO_ACTIVATIONS"
    if not plan.has_states():
        left_out += " -DHX_NO_STATES"
    if not plan.has_integers():
        left_out += " -DHX_NO_INTEGERS"
    left_out += f" -DHX_PLAN_DTYPES={plan.dtype_bits():#x}"
    text = _MAKEFILE.replace("@LEFT_OUT@", left_out)
    for place in ("USAGE", "SETTINGS", "OBJECTS", "RULES"):
        text = text.replace(f"@{place}@", _CMSIS_NN[place] if cmsis_nn else "")
    return text.replace("NAME", name)


# The default memory sizes belong to ARM's MPS boards, which emulators have. Users set the sizes of their own part.
_MAKEFILE = """\
# make                        the app for this machine, ./NAME
# make check                  run the app on golden/input.bin (streamed inputs: by rows), compare with golden/output.bin
# make TARGET=cortex-m4       for a microcontroller, NAME.elf; also cortex-m7, cortex-m55
# Memory of the part, for example: make TARGET=cortex-m4 FLASH_BYTES=0x80000 RAM_BYTES=0x20000
# The plan is verified when it is loaded. VERIFY=0 omits this and saves 7 KiB: `hexane codegen` has verified the plan.
# INPUT=app/pattern.c         streamed inputs come from that file's port_input(), not from input.bin (app/port.h)
# MESSAGES=0, the default for microcontrollers, reduces errors to the table, row and name, and saves 5 KiB.
# WERROR=1 stops at a warning, also of a stack frame of more than 1024 bytes.
# HOOKS=1 builds `trace` and `yield` of hexane.h, for a main program that sets them: app/main.c does not.
@USAGE@TARGET ?= host
VERIFY ?= 1
HOOKS ?= 0
MESSAGES ?= $(if $(filter host,$(TARGET)),1,0)
SOURCES := NAME.c NAME_plan.c app/main.c $(wildcard src/*.c src/kernels/*.c)
FLAGS := -std=c99 -pedantic -Wall -Wextra -Wframe-larger-than=1024 -fno-math-errno -ffp-contract=off \\
  $(if $(WERROR),-Werror) -ffunction-sections -fdata-sections -Iinclude@LEFT_OUT@

ifeq ($(HOOKS),0)
FLAGS += -DHX_HOOKS=0
endif

ifeq ($(VERIFY),0)
FLAGS += -DHX_TRUSTED_PLAN
endif

ifeq ($(MESSAGES),0)
FLAGS += -DHX_SHORT_ERRORS
endif

ifneq ($(INPUT),)
FLAGS += -DPORT_INPUT_IS_ELSEWHERE
SOURCES += $(INPUT)
endif

ifeq ($(TARGET),host)
CFLAGS ?= -O2
SOURCES += app/host.c
OUTPUT := NAME
LDFLAGS += -Wl,--gc-sections
else
CC := arm-none-eabi-gcc
CFLAGS ?= -Os -flto -fipa-pta -fno-ssa-phiopt -fno-tree-vrp
SOURCES += app/cortex_m.c
OUTPUT := NAME.elf
FLASH_BEGIN ?= 0
RAM_BEGIN ?= 0x20000000
STACK_BYTES ?= 0x1800
# No vector instructions on the M55: with them GCC 12 writes a conditional instruction that its own assembler refuses.
cortex-m55_EXTENSIONS := +nomve
# -fbuiltin: the many copies of a few bytes are compiled without calls.
FLAGS += -ffreestanding -fbuiltin -mthumb -mcpu=$(TARGET)$($(TARGET)_EXTENSIONS) -mfloat-abi=hard
cortex-m4_FLAGS := -mfpu=fpv4-sp-d16
cortex-m7_FLAGS := -mfpu=fpv5-d16
cortex-m55_FLAGS := -mfpu=auto
FLAGS += $($(TARGET)_FLAGS)
cortex-m55_FLASH := 0x80000
cortex-m55_RAM := 0x80000
FLASH_BYTES ?= $(or $($(TARGET)_FLASH),0x400000)
RAM_BYTES ?= $(or $($(TARGET)_RAM),0x400000)
LDFLAGS += -nostartfiles -specs=nano.specs -Wl,--gc-sections -Tapp/cortex_m.ld \\
  $(foreach size,FLASH_BEGIN FLASH_BYTES RAM_BEGIN RAM_BYTES STACK_BYTES,-Wl,--defsym=$(size)=$($(size)))
endif

@SETTINGS@COMMAND = $(CC) $(FLAGS) $(CFLAGS) $(SOURCES)@OBJECTS@ $(LDFLAGS) -o $(OUTPUT)
# The command as one word of the shell.
QUOTED = '$(subst ','\\'',$(COMMAND))'
INCLUDED := $(wildcard *.h include/*.h src/*.h src/kernels/*.h app/*.h app/*.ld cmsis_nn/*.h)

$(OUTPUT): $(SOURCES)@OBJECTS@ $(INCLUDED) Makefile build/command
\t$(COMMAND)

# Rewritten if the command has changed, so that a changed TARGET or setting builds again.
build/command: always
\t@mkdir -p build
\t@printf '%s\\n' $(QUOTED) | cmp -s - $@ 2>/dev/null || printf '%s\\n' $(QUOTED) > $@
@RULES@
clean:
\trm -rf NAME NAME.elf build

# Runs the network on golden/input.bin, whose output `hexane codegen` has computed, and compares all bytes.
check: $(OUTPUT)
\t@test -f golden/input.bin || { echo "check: golden/input.bin is not there: codegen made none" >&2; exit 1; }
\tcp golden/input.bin input.bin
\t./$(OUTPUT)
\t@cmp output.bin golden/output.bin && echo "check: output.bin is golden/output.bin"

.PHONY: always clean check
"""

# Warnings are off for CMSIS-NN's sources, which compile as hosted, because GCC then uses its own memcpy and memset.
_CMSIS_NN = {
    "USAGE": (
        """\
# CMSIS_NN=FOLDER             the folder of CMSIS-NN 7.0.0, or of another version with the same functions; it computes
#                             some of the steps
"""
    ),
    "SETTINGS": (
        """\
ifneq ($(MAKECMDGOALS),clean)
ifeq ($(wildcard $(CMSIS_NN)/Include/arm_nnfunctions.h),)
$(error CMSIS_NN: got "$(CMSIS_NN)", need the folder of CMSIS-NN, with Include/arm_nnfunctions.h: make CMSIS_NN=FOLDER)
endif
endif
SOURCES += cmsis_nn/cmsis_nn.c
FLAGS += -DHX_BODIES -isystem $(CMSIS_NN)/Include
CMSIS_NN_OBJECTS := $(patsubst $(CMSIS_NN)/Source/%.c,build/$(TARGET)/%.o,$(wildcard $(CMSIS_NN)/Source/*/*.c))

"""
    ),
    "OBJECTS": " $(CMSIS_NN_OBJECTS)",
    "RULES": (
        """
build/$(TARGET)/%.o: $(CMSIS_NN)/Source/%.c Makefile build/command
\t@mkdir -p $(@D)
\t$(CC) $(FLAGS) $(CFLAGS) -std=gnu11 -fhosted -w -c $< -o $@
"""
    ),
}
