"""Code size and instructions of the C99 runtime on a Cortex-M: prints
python/hexane/targets/shared/microcontrollers.toml.

Code: sizes of functions, and the functions that each kernel needs. Instructions: QEMU counts the instructions per
multiply-accumulate in a run of quantised networks. Needs arm-none-eabi-gcc and qemu-system-arm."""

import argparse
import re
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import onnx

import hexane as hx
from hexane.emit.c99 import generate
from hexane.emit.plan_view import runtime_files, supported
from hexane.program.work import multiply_adds

CORES = {"cortex-m4": ("mps2-an386", "fpv4-sp-d16"), "cortex-m7": ("mps2-an500", "fpv5-d16")}
FLAGS = (
    "-std=c99 -ffreestanding -mthumb -mcpu=cortex-m4 -mfpu=fpv4-sp-d16 -mfloat-abi=hard -Os -fno-math-errno"
    " -ffp-contract=off -fbuiltin -DHX_SHORT_ERRORS"
)
SECTIONS = ("-ffunction-sections", "-fdata-sections")
STARTUP = 1024  # bytes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", type=Path, nargs="+", metavar="MODEL", help="quantised ONNX files")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print("# What the C99 runtime takes on microcontrollers. Written by benchmarks/mcu.py.")
        print('source = "hexane"\nstatus = "measured"\n')
        print_code(Path(folder))
        print_cycles(Path(folder), options.networks)
    return 0


Section = tuple[str, str]  # a file and a section of it, with one function or table


def print_code(folder: Path) -> None:
    """Sizes of the sections that the linker keeps for each kernel. Sections needed by the same kernels are added up."""
    for place, path in runtime_files().items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(path.read_text())
    includes = (f"-I{folder / 'include'}", f"-I{folder / 'src'}")
    sizes: dict[Section, int] = {}
    calls: dict[Section, set[str]] = {}
    home: dict[str, Section] = {}
    for source in sorted((folder / "src").rglob("*.c")):
        made = folder / f"{source.stem}.o"
        subprocess.run(
            ["arm-none-eabi-gcc", *FLAGS.split(), *SECTIONS, *includes, "-c", source, "-o", made], check=True
        )
        read_object(made, sizes, calls, home)

    for made in compilers_own(folder / "libgcc"):  # for example arithmetic on doubles
        read_object(made, sizes, calls, home)

    def kept(roots: list[str]) -> set[Section]:
        found: set[Section] = set()
        left = [home[root] for root in roots]
        while left:
            if (section := left.pop()) not in found:
                found.add(section)
                left += [
                    to for name in calls[section] if (to := home.get(name, (section[0], name))) in sizes and may(to)
                ]
        return found

    def may(section: Section) -> bool:
        return section[0] not in left_out

    kernels, activations = supported()
    left_out = {"blocks", "lz4", "streamed_ports", "integers"}
    base = kept([name for name in home if re.search(rf"\b{name}\(", (folder / "include/hexane.h").read_text())])
    of = {("kernels", name): kept([f"hx_kernel_{name}"]) - base for name in kernels}
    of |= {("activations", name): kept([f"hx_activation_{name}"]) - base for name in activations}
    left_out = {"streamed_ports"}
    integers = kept([name for name, section in home.items() if section[0] == "integers"]) - base
    of["codecs", "lz4"] = {s for s in sizes if s[0] == "blocks"} | kept(["hx_codec_lz4"]) - base
    parts: dict[tuple[tuple[str, str], ...], int] = {}
    for section, size in sizes.items():
        if users := tuple(key for key, sections in of.items() if section in sections):
            parts[users] = parts.get(users, 0) + size
    print("[code]\n# Bytes of text and constants, compiled for a Cortex-M4 at -Os without the texts of errors.")
    print("# base: what every app has. startup: what the compiler adds (vectors, C library, main program).")
    print(f"base = {sum(sizes[section] for section in base)}\nstartup = {STARTUP}")
    print(f"streamed_ports = {sum(size for section, size in sizes.items() if section[0] == 'streamed_ports')}")
    print(f"integers = {sum(sizes[section] for section in integers)}")
    print("# Parts of the runtime, and which of them each kernel, activation and codec needs.")
    print(f"parts = {list(parts.values())}")
    title = ""
    for key in of:
        if key[0] != title:
            title = key[0]
            print(f"[code.{title}]")
        print(f"{key[1]} = {[i for i, users in enumerate(parts) if key in users]}")
    print()


def compilers_own(folder: Path) -> list[Path]:
    folder.mkdir()
    asked = ["arm-none-eabi-gcc", *FLAGS.split(), "-print-libgcc-file-name"]
    library = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    subprocess.run(["arm-none-eabi-ar", "x", library], check=True, cwd=folder)
    return sorted(folder.glob("*.o"))


def read_object(
    path: Path, sizes: dict[Section, int], calls: dict[Section, set[str]], home: dict[str, Section]
) -> None:
    """Adds the sections of an object file: their sizes, the symbols and sections each refers to, and where global
    symbols are."""
    shown = subprocess.run(
        ["arm-none-eabi-objdump", "-h", "-r", "-t", path], check=True, capture_output=True, text=True
    )
    at = ""
    for line in shown.stdout.splitlines():
        if match := re.match(r" *\d+ (\.(?:text|rodata|data)\S*) +([0-9a-f]{8}) ", line):
            sizes[path.stem, match[1]] = -(-int(match[2], 16) // 4) * 4
            calls[path.stem, match[1]] = set()
        elif match := re.match(r"RELOCATION RECORDS FOR \[(.*)\]", line):
            at = match[1]
        elif (match := re.match(r"[0-9a-f]{8} R_\S+ +([^\s+]+)", line)) and (path.stem, at) in calls:
            calls[path.stem, at].add(match[1])
        elif match := re.match(r"[0-9a-f]{8} (.).{6} (\.\S+)\t[0-9a-f]{8} (?:\.hidden )?(\S+)", line):
            if match[1] == "g":
                home[match[3]] = (path.stem, match[2])
            elif match[3] != match[2]:
                calls.setdefault((path.stem, match[3]), set()).add(match[2])
                sizes.setdefault((path.stem, match[3]), 0)


def print_cycles(folder: Path, networks: list[Path]) -> None:
    print(
        "# Instructions for each multiply-accumulate, counted by QEMU, whole tensors: the largest number of some"
        " networks."
    )
    print("# A cycle each is what a core takes at best; waiting for flash comes on top.")
    for core in CORES:
        print(f"[cores.{core}]")
        found: dict[str, dict[str, float]] = {}
        for path in networks:
            kind, count, macs = instructions(folder / path.stem, core, path)
            found.setdefault(kind, {})[path.stem] = count / macs
        for kind, counts in found.items():
            least, most = min(counts.values()), max(counts.values())
            print(f"{kind} = [{least:.1f}, {most:.1f}] #", ", ".join(f"{name} {n:.1f}" for name, n in counts.items()))


def instructions(folder: Path, core: str, model: Path) -> tuple[str, int, int]:
    """Returns "int8" or "fp32", the instructions of a run, and its multiply-accumulates."""
    net = hx.compile(onnx.load(model), target="host", threads=1)
    assert isinstance(net, hx.Model)
    folder.mkdir(exist_ok=True)
    net.save(folder / "net.hxp")
    for place, text in generate((folder / "net.hxp").read_bytes(), "net", app=True).items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text)
    main = folder / "app/main.c"
    timed = main.read_text().replace("  if (hx_run(", "  print_elapsed();\n  if (hx_run(")
    timed = timed.replace("  port_exit(0);", "  print_elapsed();\n  port_exit(0);")
    main.write_text(timed.replace("static int failed", ELAPSED + "static int failed", 1))
    x = np.random.default_rng(0).standard_normal(net.inputs[0].shape).astype(np.float32)
    (folder / "input.bin").write_bytes(x.tobytes())
    subprocess.run(["make", "-s", "-B", "-C", folder, f"TARGET={core}"], check=True)
    board = ["-M", CORES[core][0], "-nographic", "-icount", "shift=0,sleep=off", "-kernel", "net.elf"]
    semihosting = ["-semihosting-config", "enable=on,target=native"]
    command = ["qemu-system-arm", *board, *semihosting]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=True)
    before, after = map(int, re.findall(r"elapsed (\d+)", ran.stdout + ran.stderr))
    assert net.program is not None
    kind = "int8" if any("quantized" in step.kernel for step in net.program.steps) else "fp32"
    return kind, (before - after) * NS_OF_TICK, sum(multiply_adds(step.node) for step in net.program.steps)


# The emulator's time advances 1 ns per instruction; a 32-bit timer of the board counts down at 25 MHz.
ELAPSED = """
static void print_elapsed(void) {
  volatile unsigned* const timer = (volatile unsigned*)0x40000000;
  unsigned value;
  char text[16];
  int at = 15;
  if (!timer[0]) {
    timer[2] = timer[1] = 0xffffffff;
    timer[0] = 1;
  }
  value = timer[1];
  text[at] = 0;
  do text[--at] = (char)('0' + value % 10); while (value /= 10);
  port_print("elapsed ");
  port_print(text + at);
  port_print("\\n");
}

"""
NS_OF_TICK = 40

if __name__ == "__main__":
    raise SystemExit(main())
