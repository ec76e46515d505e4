"""What `hexane codegen` writes is built as C, included from C++, and built again where a setting changed."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import hexane as hx
from hexane import _core
from hexane.emit.c99 import generate
from hexane.emit.plan import emit_plan

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="not there: make")
COMPILER = "CC=touch net; echo"  # a second is not spent on what is not run
needs_cpp = pytest.mark.skipif(shutil.which("c++") is None, reason="not there: a C++ compiler")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    net = hx.compile(hx.relu(hx.input("x", (1, 8))), target="host", threads=1)
    assert isinstance(net, hx.Model)
    assert net.program is not None
    for place, text in generate(bytes(_core.plan_write(emit_plan(net.program))), "net", app=True).items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text)
    return tmp_path


def make(folder: Path, *arguments: str) -> str:
    return subprocess.run(["make", "-C", folder, *arguments], capture_output=True, text=True, check=True).stdout


@needs_make
def test_a_warning_ends_a_build_only_where_that_is_asked_for(folder: Path) -> None:
    assert "-Werror" not in make(folder, "WERROR=", COMPILER)
    assert " -Werror " in make(folder, "WERROR=1", COMPILER)


@needs_make
def test_a_changed_setting_builds_again_and_the_same_does_not(folder: Path) -> None:
    assert " -O1 " in make(folder, "CFLAGS=-O1", COMPILER)
    assert " -O1 " not in make(folder, "CFLAGS=-O1", COMPILER)
    assert " -O0 " in make(folder, "CFLAGS=-O0", COMPILER)
    assert "-DHX_TRUSTED_PLAN" in make(folder, "CFLAGS=-O0", "VERIFY=0", COMPILER)


@needs_make
def test_another_target_builds_again(folder: Path) -> None:
    """All Cortex-M have one output, net.elf."""
    compiler = "CC=touch net.elf; echo"
    assert "-mcpu=cortex-m4" in make(folder, "TARGET=cortex-m4", compiler)
    assert "-mcpu=cortex-m7" in make(folder, "TARGET=cortex-m7", compiler)
    assert "-mcpu" not in make(folder, "TARGET=cortex-m7", compiler)


@needs_make
def test_a_setting_with_quotes_is_one_of_the_shell(folder: Path) -> None:
    """A value in parentheses, and one with a backslash at which the echo of some shells ends."""
    make(folder, "CFLAGS=-DOWN_SETTING='(1)'")
    assert "(1)" not in make(folder, "CFLAGS=-DOWN_SETTING='(1)'")
    make(folder, "CFLAGS=-DOWN_SETTING='(1)'", COMPILER)
    assert "(2)" in make(folder, "CFLAGS=-DOWN_SETTING='(2)'", COMPILER)
    make(folder, "CFLAGS=-DOWN_SETTING='\"a\\c 1\"'", COMPILER)
    assert "a\\c 2" in make(folder, "CFLAGS=-DOWN_SETTING='\"a\\c 2\"'", COMPILER)


@needs_make
@pytest.mark.parametrize("place", ["net.h", "include/hexane.h", "app/port.h", "app/cortex_m.ld", "src/internal.h"])
def test_a_changed_header_or_linker_script_builds_again(folder: Path, place: str) -> None:
    assert "-Iinclude" in make(folder, COMPILER)
    assert "-Iinclude" not in make(folder, COMPILER)
    later = (folder / "net").stat().st_mtime + 10
    os.utime(folder / place, (later, later))
    assert "-Iinclude" in make(folder, COMPILER)


@needs_cpp
def test_cpp_includes_the_headers_and_links(folder: Path) -> None:
    (folder / "app" / "main.cpp").write_text(
        '#include "../net.h"\n'
        '#include "../include/hexane_kernels.h"\n'
        '#include "port.h"\n'
        "int main() {\n"
        "  if (net_load() != HX_OK) return 1;\n"
        "  float* x = static_cast<float*>(net_input(0));\n"
        "  for (unsigned i = 0; i < NET_INPUT_0_BYTES / sizeof *x; ++i) x[i] = i - 3.0f;\n"
        "  if (&hx_kernel_unary == &hx_kernel_add) return 4;\n"
        '  port_print("ready\\n");\n'
        "  if (hx_run(&net_net) != HX_OK) return 2;\n"
        "  return static_cast<const float*>(net_output(0))[7] == 4.0f ? 0 : 3;\n"
        "}\n"
    )
    sources = [*folder.glob("net*.c"), *folder.glob("src/**/*.c"), folder / "app" / "host.c"]
    flags = ["-Wall", "-Wextra", "-Werror", f"-I{folder / 'include'}"]
    objects = []
    for source in (*sources, folder / "app" / "main.cpp"):
        objects.append(folder / f"{source.stem}.o")
        compiler = ["c++"] if source.suffix == ".cpp" else ["cc", "-std=c99"]
        subprocess.run([*compiler, *flags, "-c", source, "-o", objects[-1]], check=True)
    subprocess.run(["c++", *objects, "-lm", "-o", folder / "joined"], check=True)
    assert subprocess.run([folder / "joined"]).returncode == 0


@pytest.mark.parametrize("target", ["host", "cortex-m4"])
def test_the_sources_have_no_warning_of_conversions_either(folder: Path, target: str) -> None:
    compiler = {"host": ["cc"], "cortex-m4": ["arm-none-eabi-gcc", "-mcpu=cortex-m4", "-mthumb"]}[target]
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"not there: {compiler[0]}")
    sources = [*folder.glob("src/**/*.c"), folder / "net.c", folder / "net_plan.c", folder / "app" / "main.c"]
    sources.append(folder / "app" / ("host.c" if target == "host" else "cortex_m.c"))
    flags = ["-Wall", "-Wextra", "-pedantic", "-Wconversion", "-Wshadow", "-Wmissing-prototypes", "-Werror"]
    ran = subprocess.run(
        [*compiler, "-std=c99", "-fsyntax-only", *flags, "-Iinclude", "-I.", *sources],
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[:2000]


@pytest.mark.parametrize("page", ["README.md", "docs/tutorials/microcontroller.md"])
def test_the_pages_count_the_files_of_an_app(folder: Path, page: str) -> None:
    text = (Path(__file__).parents[2] / page).read_text()
    found = re.search(r"^firmware: (\d+) files", text, re.MULTILINE)
    assert found is not None
    golden = 2  # golden/input.bin and golden/output.bin, which only the command writes
    assert int(found[1]) == sum(path.is_file() for path in folder.rglob("*")) + golden
