"""Writes a plan as C99 sources: the runtime, the plan's bytes, its memory and kernels, and an app."""

import re
from collections.abc import Callable, Mapping

from hexane import _core
from hexane.emit.c99_app import STREAMED, main_program, makefile, pattern
from hexane.emit.c99_check import why_refused
from hexane.emit.cmsis_nn import Assignment, Body
from hexane.emit.plan_view import PlanView, arena_bytes, memory_bytes, runtime_files
from hexane.emit.prepare import prepared
from hexane.emit.scratch import ALIGNMENT, Scratch
from hexane.errors import Error

_BYTES_IN_LINE = 24


def c_name(text: str) -> str:
    """Returns a C identifier for any text."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    return name if re.match(r"[A-Za-z]", name) else f"net_{name}"


def generate(data: bytes, name: str, app: bool, cmsis_nn: bool = False) -> dict[str, str]:
    """Returns the files by their path in the folder. `name` is the prefix of all generated symbols. cmsis_nn: CMSIS-NN
    computes the steps for which it gives the same bits.

    Raises Error for a damaged plan, and for a plan that needs a missing part of the runtime.
    """
    _core.Program(data, 1)  # Checks the rows of loops in rings, unlike the runtime's loader.
    kernels, activations = PlanView(data).used()  # This plan still has the names of layers, for errors.
    plan = PlanView(prepared(data))
    if why := why_refused(data, plan):
        raise Error(f"[codegen] {why}")
    files = {
        place: path.read_text()
        for place, path in runtime_files().items()
        if not place.startswith(("host/", "app/")) and (cmsis_nn or not place.startswith("cmsis_nn/"))
    }
    bodies = plan.bodies() if cmsis_nn else {}
    files[f"{name}.h"] = _header(plan, name, bodies)
    files[f"{name}.c"] = _source(plan, name, kernels, activations, bodies)
    files[f"{name}_plan.c"] = _bytes(plan, name)
    if app:
        for place, path in runtime_files().items():
            if place.startswith("app/"):
                files[place] = path.read_text()
        files["app/main.c"] = main_program(plan, name)
        if any(port.rows for port in plan.inputs):
            files["app/pattern.c"] = pattern(plan, name)
        files["Makefile"] = makefile(name, plan, cmsis_nn)
    return files


Bodies = Mapping[str, Assignment]  # extension -> kernels of steps; empty if no step uses one


def _by_extension(bodies: Bodies, lines: Callable[[Assignment], list[str]]) -> list[str]:
    """Returns lines of C for the processor that compiles them: the lines for MVE or for DSP."""
    dsp, mve = (lines(bodies[extension]) for extension in ("dsp", "mve"))
    if dsp == mve:
        return dsp
    return ["#if defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & 1)", *mve, "#else", *dsp, "#endif"]


def _note(name: str) -> str:
    return f"/* {name}: written by `hexane codegen`. */\n"


def _header(plan: PlanView, name: str, bodies: Bodies) -> str:
    upper = name.upper()
    lines = [_note(name), f"#ifndef {upper}_H_", f"#define {upper}_H_", "", '#include "hexane.h"', ""]
    ports = plan.port_bytes
    for what, size in (("PLAN", len(plan.data)), ("WEIGHT", plan.weight_bytes), ("PORT", ports)):
        lines.append(f"#define {upper}_{what}_BYTES {size}u")

    def arena(assignment: Assignment | None) -> list[str]:
        return [f"#define {upper}_ARENA_BYTES {arena_bytes(plan, assignment)}u"]

    lines += [*(("/* With the scratch of CMSIS-NN. */", *_by_extension(bodies, arena)) if bodies else arena(None))]
    for side, these in (("INPUT", plan.inputs), ("OUTPUT", plan.outputs)):
        lines.append(f"#define {upper}_{side}S {len(these)}u")
        for i, port in enumerate(these):
            lines.append(f"/* {port.text} */")
            lines.append(f"#define {upper}_{side}_{i}_BYTES {plan.spaces[port.space].bytes}u")
            if port.rows:
                lines.append(f"#define {upper}_{side}_{i}_ROWS {port.rows.count}u")
                lines.append(f"#define {upper}_{side}_{i}_ROW_BYTES {port.rows.bytes}u")
    lines += [
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        f"extern const unsigned char {name}_plan[{upper}_PLAN_BYTES];",
        f"extern hx_net {name}_net; /* after {name}_load() */",
        "",
        "/* Verifies the plan and makes it ready. If the result is not HX_OK, `error` of the net has the reason. */",
        f"hx_status {name}_load(void);",
        "",
        "/* The memory of a port. The next run reads inputs from there and writes outputs there, see hx_run()."
        + ("\n" + STREAMED.replace("NAME", name) if plan.streams else " */"),
        f"void* {name}_input(unsigned index);",
        f"void* {name}_output(unsigned index);",
        "",
        "#ifdef __cplusplus",
        "}",
        "#endif",
        "",
        "#endif",
    ]
    return "\n".join(lines) + "\n"


def _source(plan: PlanView, name: str, kernels: list[str], activations: list[str], bodies: Bodies) -> str:
    lines = [_note(name), f'#include "{name}.h"', "", '#include "hexane_kernels.h"', ""]
    if bodies:
        lines.insert(-1, '#include "cmsis_nn/cmsis_nn.h"')
    lines += [
        "#if defined(__GNUC__)",
        "#define ALIGNED(bytes) __attribute__((aligned(bytes)))",
        "#else",
        "#define ALIGNED(bytes) /* the loader reports memory that is not aligned */",
        "#endif",
        "",
    ]
    rows = []
    streamed = {port.space for port in (*plan.inputs, *plan.outputs) if port.rows}
    for i, space in enumerate(plan.spaces):
        sizes = [memory_bytes(plan, assignment, i) for assignment in bodies.values()] or [space.bytes]
        if space.kind == "weights" or max(sizes) == 0 or i in streamed:
            rows.append("    {0, 0},")
            continue
        alignment = max(space.alignment, ALIGNMENT if bodies and space.kind == "arena" else 8)

        def memory(assignment: Assignment | None, i: int = i, alignment: int = alignment) -> list[str]:
            size = max(memory_bytes(plan, assignment, i), 1)
            return [f"static unsigned char memory_{i}[{size}] ALIGNED({alignment});"]

        lines += _by_extension(bodies, memory) if bodies else memory(None)
        rows.append(f"    {{memory_{i}, sizeof memory_{i}}},")
    lines += ["", f"static hx_memory memory[{max(len(rows), 1)}] = {{", *(rows or ["    {0, 0},"]), "};", ""]
    lines.append(f"static const hx_kernel* const kernels[] = {{{''.join(f'&hx_kernel_{k}, ' for k in kernels)}0}};")
    lines.append(
        "static const hx_activation* const activations[] ="
        f" {{{''.join(f'&hx_activation_{a}, ' for a in activations)}0}};"
    )
    lines.append(f"static const hx_codec* const codecs[] = {{{''.join(f'&hx_codec_{c}, ' for c in plan.codecs)}0}};")
    call = f"hx_load(&{name}_net, {name}_plan, sizeof {name}_plan, kernels, activations, codecs, memory, {len(rows)});"
    body = [f"  return {call}"]
    if bodies:
        lines += ["", *_body_tables(bodies)]
        load = f"hx_set_bodies(&{name}_net, body_steps, sizeof body_steps / sizeof *body_steps - 1)"
        body = [f"  const hx_status status = {call}", f"  return status == HX_OK ? {load} : status;"]
    lines += ["", f"hx_net {name}_net;", "", f"hx_status {name}_load(void) {{", *body, "}", ""]
    for side in ("input", "output"):
        lines.append(
            f"void* {name}_{side}(unsigned index) {{ return memory[hx_{side}_space(&{name}_net, index)].data; }}"
        )
    return "\n".join(lines) + "\n"


def _body_tables(bodies: Bodies) -> list[str]:
    """Returns tables of the steps with a body, and of their multipliers, shifts and biases. The last row ends the
    table."""
    lines = []
    for i, kernel, body in bodies["dsp"].steps:
        if not isinstance(body, Body):
            lines.append(f"/* Step {i}, {kernel}: {body}. */")
            continue
        for what in ("multipliers", "shifts", "biases"):
            if values := getattr(body, what):
                lines.append(f"static const int32_t {what}_{i}[] = {{{', '.join(map(str, values))}}};")

    def table(assignment: Assignment) -> list[str]:
        return ["static const hx_body_step body_steps[] = {", *_body_rows(assignment), "    {0, 0, 0, 0, 0, 0, 0, 0}};"]

    return [*lines, *_by_extension(bodies, table)]


def _body_rows(assignment: Assignment) -> list[str]:
    rows = []
    for i, _, body in assignment.steps:
        if isinstance(body, Body):
            place = assignment.scratch.get(i, Scratch(0, 0, 0))
            arrays = ", ".join(
                f"{what}_{i}" if getattr(body, what) else "0" for what in ("multipliers", "shifts", "biases")
            )
            rows.append(
                f"    {{{i}, &hx_cmsis_nn_{body.name}, {place.space}, {place.offset}u, {place.bytes}u, {arrays}}},"
            )
    return rows


def _bytes(plan: PlanView, name: str) -> str:
    data = plan.data
    lines = [_note(name), f'#include "{name}.h"', "", "#if defined(__GNUC__)", "__attribute__((aligned(16)))", "#endif"]
    lines.append(f"const unsigned char {name}_plan[{name.upper()}_PLAN_BYTES] = {{")
    for at in range(0, len(data), _BYTES_IN_LINE):
        lines.append(",".join(map(str, data[at : at + _BYTES_IN_LINE])) + ",")
    return "\n".join(lines) + "\n};\n"
