"""A plan as C99 sources: the runtime, the plan's bytes, its memory and the kernels it uses, and an app around them."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from hexane import _core
from hexane.attrs import string_offsets
from hexane.dtypes import dtype
from hexane.emit.blocks import packed_weights, unpacked_weights
from hexane.emit.cmsis_nn import EXTENSIONS, Assignment, Body, assigned
from hexane.emit.plan import ABSENT
from hexane.emit.scratch import ALIGNMENT, Scratch
from hexane.errors import Error
from hexane.graph import Array

_INSTALLED = Path(__file__).parents[1] / "c99"  # beside the package where that is installed
_CHECKOUT = Path(__file__).parents[3]
_BYTES_IN_LINE = 24


def runtime_files() -> dict[str, Path]:
    """The runtime's C files by their place in it, and plan.h, which it shares with the compiler."""
    root = _INSTALLED if _INSTALLED.is_dir() else _CHECKOUT / "runtime"
    files = {
        str(path.relative_to(root)): path for path in sorted(root.rglob("*")) if path.suffix in (".c", ".h", ".ld")
    }
    if not files:
        raise Error(f"[codegen] got no C sources in {root}, need those of the runtime")
    return files | {
        "include/plan.h": root / "include/plan.h" if _INSTALLED.is_dir() else _CHECKOUT / "csrc/plan/plan.h"
    }


def supported() -> tuple[list[str], list[str]]:
    """The names of the runtime's kernels and activations."""
    text = runtime_files()["include/hexane_kernels.h"].read_text()
    return re.findall(r"\bKERNEL\((\w+)\)", text), re.findall(r"\bACTIVATION\((\w+)\)", text)


@dataclass(frozen=True, slots=True)
class Space:
    """A memory of a plan: its name, what it is for, bytes, and where it may begin."""

    name: str
    kind: str
    bytes: int
    alignment: int


@dataclass(frozen=True, slots=True)
class Rows:
    """How a streamed port goes by rows, as the runtime's hooks bring and take them: so many, of so many bytes each. shape, strides: of all of
    them as a view into the port's array."""

    count: int
    bytes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def view(self, array: Array) -> Array:
        """The port's array, without gaps, as its rows."""
        return np.ndarray(self.shape, array.dtype, array, 0, self.strides)


@dataclass(frozen=True, slots=True)
class Port:
    """rows: of a streamed one."""

    name: str
    space: int
    dtype: str
    shape: tuple[int, ...]
    rows: Rows | None = None

    @property
    def text(self) -> str:
        """For a comment in C: what it is, and what its rows are."""
        text = f"{self.name.encode('ascii', 'replace').decode().replace('*/', '* /')}: {self.dtype}{list(self.shape)}"
        if self.rows is None:
            return text
        item = dtype(self.dtype).bits // 8
        axes = {(n, item * prod(self.shape[i + 1 :])): str(i) for i, n in enumerate(self.shape) if n > 1}
        inner = [axes.get(one) for one in zip(self.rows.shape[2:], self.rows.strides[2:], strict=True) if one[0] > 1]
        order = "" if None in inner else f", in each its axes {', '.join(map(str, inner))}, the last one innermost"
        return f"{text}; streamed in {self.rows.count} rows of {self.rows.bytes} bytes{order if len(inner) > 1 else ''}"


class PlanView:
    """What code generation reads in a plan. Raises Error for a file that is no sound plan."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.sections: Mapping[str, Any] = _core.plan_read(np.frombuffer(data, np.uint8))
        self._strings = bytes(self.sections["strings"])
        sizes = {name: bits // 8 for name, bits in _core.dtypes().items()}
        self.item_bytes = {at: sizes[self.string(at)] for at in set(self.sections["tensors"]["dtype"].tolist())}
        self.spaces = [
            Space(self.string(row["name"]), self.string(row["kind"]), int(row["bytes"]), int(row["alignment"]))
            for row in self.sections["spaces"]
        ]
        self.inputs, self.outputs = ([self._port(row) for row in self.sections[side]] for side in ("inputs", "outputs"))
        self.packed_bytes = len(self.sections["packed"])
        self.weight_bytes = len(self.sections["weights"]) + self.packed_bytes
        self.codecs = sorted({self.string(row["codec"]) for row in self.sections["blocks"]})

    def string(self, offset: int) -> str:
        return _text(self._strings, offset)

    def bodies(self) -> dict[str, Assignment]:
        """For each of EXTENSIONS what CMSIS-NN computes, the same steps for all, and where these have their scratch."""
        without: dict[int, str] = {}
        while True:
            found = {one: assigned(self.sections, one, self.item_bytes, without) for one in EXTENSIONS}
            reasons = [{i: body for i, _, body in one.steps if isinstance(body, str)} for one in found.values()]
            if all(those == reasons[0] for those in reasons):
                return found
            without = {i: reason for those in reasons for i, reason in those.items()}

    def _port(self, row: Any) -> Port:
        tensor = self.sections["tensors"][row["tensor"]]
        shape = tuple(int(d) for d in tensor["shape"][: tensor["rank"]])
        space = int(tensor["space"])
        rows = self._rows(space, tensor) if row["streamed"] else None
        return Port(self.string(row["name"]), space, self.string(tensor["dtype"]), shape, rows)

    def _rows(self, space: int, whole: Any) -> Rows:
        """As the one step that touches the port goes through them; of one that no step does, all of it is a row."""
        tensors = self.sections["tensors"]
        used = [tensors[i] for i in self.sections["operands"].tolist() if i != ABSENT and tensors[i]["space"] == space]
        tensor = used[0] if used else whole
        shape, strides = (tuple(map(int, tensor[field][: tensor["rank"]])) for field in ("shape", "strides"))
        count = shape[1] if len(shape) > 1 and shape[0] == 1 else 1
        size = prod(shape) * dtype(self.string(tensor["dtype"])).bits // 8
        return Rows(count, size // max(count, 1), shape, strides)

    @property
    def port_bytes(self) -> int:
        """What inputs and outputs take that are not streamed."""
        return sum(self.spaces[port.space].bytes for port in (*self.inputs, *self.outputs) if not port.rows)

    @property
    def streams(self) -> bool:
        """Whether it has streamed ports."""
        return any(port.rows for port in (*self.inputs, *self.outputs))

    def used(self) -> tuple[list[str], list[str]]:
        """The kernels and activations that the steps need. Raises Error for those that the runtime has not got."""
        kernels, activations = supported()
        layouts = {row["name"]: row["attrs"] for row in _core.kernels()}
        used: set[str] = set()
        functions: set[str] = set()
        for index, step in enumerate(self.sections["steps"]):
            name = self.string(step["kernel"])
            if name in kernels:
                used.add(name)
            elif name in activations:
                used.add("unary")
                functions.add(name)
            else:
                raise Error(
                    f"[codegen] step {index}, {self.string(step['source'])}: got the kernel {name}, which the C99 runtime has not got, need one of {', '.join(kernels)}, or {', '.join(activations)}"
                )
            if layouts[name].endswith("epilogue:E"):
                functions |= self._slots(step) - {"add", "relu", "relu6", "clip"}
        if missing := sorted(functions - set(activations)):
            raise Error(
                f"[codegen] got the activation {missing[0]}, which the C99 runtime has not got, need one of {', '.join(activations)}"
            )
        return sorted(used), sorted(functions)

    def only_clamps(self) -> bool:
        """Whether epilogues do nothing but clamp, and every quantised product gives 8 bits."""
        layouts = {row["name"]: row["attrs"] for row in _core.kernels()}
        for step in self.sections["steps"]:
            name = self.string(step["kernel"])
            if layouts[name].endswith("epilogue:E") and not self._slots(step) <= {"relu", "relu6", "clip"}:
                return False
            out = self.sections["operands"][step["operands"] + step["num_inputs"]]
            dtype = self.string(self.sections["tensors"][out]["dtype"])
            if name in ("quantized_conv", "quantized_matmul") and dtype not in ("int8", "uint8"):
                return False
        return True

    def _slots(self, step: Any) -> set[str]:
        """The functions in the epilogue, the last attribute: a count and four slots of four words."""
        end = int(step["attrs"]) + int(step["attrs_bytes"])
        words = np.frombuffer(bytes(self.sections["attrs"])[end - 17 * 8 : end], np.int64)
        return {self.string(int(words[1 + 4 * i])) for i in range(int(words[0]))}


def prepared(data: bytes) -> bytes:
    """The plan with the weights of convolutions in the order in which the runtime reads them, channels innermost, those of products of
    integers with the terms of a sum innermost, and without the names of layers, which it does not show.

    Only where weights lie changes, which their strides say; packed weights are packed again. Raises Error for a file that is no sound plan.
    """
    sections = dict(_core.plan_read(np.frombuffer(data, np.uint8)))
    strings, spaces = bytes(sections["strings"]), sections["spaces"]
    tensors, weights = sections["tensors"].copy(), unpacked_weights(sections)
    text = partial(_text, strings)
    sizes = {name: bits // 8 for name, bits in _core.dtypes().items()}
    orders: dict[int, list[int]] = {}  # of the axes of a weight, outermost first
    others = set()
    all_attrs = bytes(sections["attrs"])
    for step in sections["steps"]:
        operands = sections["operands"][step["operands"] :][: step["num_inputs"] + step["num_outputs"]].tolist()
        first_attr = all_attrs[int(step["attrs"]) : int(step["attrs"]) + 8]
        order = _order(text(step["kernel"]), first_attr, tensors, operands)
        others |= {id for i, id in enumerate(operands) if i != 1 or order is None or orders.get(id, order) != order}
        if order is not None:
            orders[operands[1]] = order
    held = [i for i, row in enumerate(tensors) if text(spaces[row["space"]]["kind"]) == "weights"]
    begins = {i: (int(tensors[i]["offset"]), _extent(tensors[i], sizes[text(tensors[i]["dtype"])])) for i in held}
    for id in sorted((orders.keys() - others) & set(held)):
        row, item = tensors[id], sizes[text(tensors[id]["dtype"])]
        shape = tuple(int(n) for n in row["shape"][: row["rank"]])
        dense = tuple(item * prod(shape[axis + 1 :]) for axis in range(len(shape)))
        begin, size = begins[id]
        alone = all(
            other == id or not (begin < at + length and at < begin + size) for other, (at, length) in begins.items()
        )
        if not alone or size == 0 or tuple(row["strides"][: row["rank"]].tolist()) != dense:
            continue
        order = orders[id]
        array = np.ndarray(shape, f"u{item}", weights[begin : begin + size].copy())
        weights[begin : begin + size] = np.ascontiguousarray(array.transpose(order)).reshape(-1).view(np.uint8)
        stride = item
        for axis in reversed(order):
            tensors[id]["strides"][axis] = stride
            stride *= shape[axis]
    sections |= _without_sources(sections)
    if len(sections["blocks"]):
        sections |= packed_weights(sections["blocks"], weights)
    else:
        sections["weights"] = weights
    return bytes(_core.plan_write({**sections, "tensors": tensors}))


def _order(kernel: str, first_attr: bytes, tensors: Any, operands: list[int]) -> list[int] | None:
    """In which order a kernel reads the axes of its weight; None: in their own."""
    if kernel in ("conv", "quantized_conv", "q31_conv"):
        x, weight = (tensors[id] for id in operands[:2])
        rank = int(weight["rank"])
        # The channels of a depthwise convolution are its outputs.
        depthwise = weight["shape"][1] == 1 and x["shape"][x["rank"] - 1] > 1
        return [*range(2, rank), 1, 0] if depthwise else [0, *range(2, rank), 1]
    if kernel in ("quantized_matmul", "q31_matmul") and not any(first_attr):  # transpose_y
        rank = int(tensors[operands[1]]["rank"])
        return [*range(rank - 2), rank - 1, rank - 2]
    return None


def _without_sources(sections: Mapping[str, Any]) -> dict[str, Any]:
    """The strings, and the steps without where they come from, as far as these names are behind all others."""
    used = [0, *sections["outputs"]["emitted_name"].tolist(), *sections["inputs"]["emitted_name"].tolist()]
    for section, fields in _NAMED.items():
        for field in fields:
            used += sections[section][field].tolist()
    layouts = {row["name"]: row["attrs"] for row in _core.kernels()}
    strings = bytes(sections["strings"])
    for step in sections["steps"]:
        begin, size = int(step["attrs"]), int(step["attrs_bytes"])
        words = np.frombuffer(bytes(sections["attrs"])[begin : begin + size], np.int64).tolist()
        used += string_offsets(layouts.get(_text(strings, step["kernel"]), ""), words)
    end = max(used)
    end = strings.index(b"\0", end) + 1
    steps = sections["steps"].copy()
    steps["source"][steps["source"] >= end] = 0
    return {"strings": strings[:end], "steps": steps}


_NAMED = {
    "spaces": ("name", "kind"), "tensors": ("name", "dtype", "layout"), "numerics": ("name", "family"), "steps": ("kernel", "device"),
    "inputs": ("name",), "outputs": ("name",), "blocks": ("codec",),
}  # fmt: skip


def _extent(tensor: Any, item: int) -> int:
    """Bytes from the first to the last of a tensor."""
    shape = tensor["shape"][: tensor["rank"]].tolist()
    steps = zip(shape, tensor["strides"][: tensor["rank"]].tolist(), strict=True)
    return 0 if 0 in shape else item + sum((extent - 1) * stride for extent, stride in steps)


def _text(strings: bytes, offset: int) -> str:
    return strings[offset : strings.index(b"\0", offset)].decode()


def c_name(text: str) -> str:
    """An identifier of C, from any text."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    return name if re.match(r"[A-Za-z]", name) else f"net_{name}"


def generate(data: bytes, name: str, app: bool, cmsis_nn: bool = False) -> dict[str, str]:
    """The files by their place in the folder. `name` is a prefix of every symbol that is made. cmsis_nn: steps that CMSIS-NN computes
    with the same bits are left to it.

    Raises Error for a plan that is damaged or needs what the runtime has not got.
    """
    _core.Program(data, 1)  # follows the rows of loops through rings, which the runtime's own loader does not
    plan = PlanView(prepared(data))
    kernels, activations = plan.used()
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
        files["app/main.c"] = _main(plan, name)
        if any(port.rows for port in plan.inputs):
            files["app/pattern.c"] = _pattern(plan, name)
        files["Makefile"] = _makefile(name, plan, cmsis_nn)
    return files


Bodies = Mapping[str, Assignment]  # by extension; empty where no step has one


def _by_extension(bodies: Bodies, lines: Callable[[Assignment], list[str]]) -> list[str]:
    """Lines of C for the processor that it is compiled for."""
    dsp, mve = (lines(bodies[extension]) for extension in ("dsp", "mve"))
    if dsp == mve:
        return dsp
    return ["#if defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & 1)", *mve, "#else", *dsp, "#endif"]


def _memory_bytes(plan: PlanView, found: Assignment | None, space: int) -> int:
    """What a space takes, with the scratch of steps."""
    return plan.spaces[space].bytes if found is None else found.sizes.get(space, plan.spaces[space].bytes)


def arena_bytes(plan: PlanView, found: Assignment | None) -> int:
    """What all arenas and states take, with the scratch of steps."""
    kinds = [space.kind for space in plan.spaces]
    return sum(_memory_bytes(plan, found, i) for i, kind in enumerate(kinds) if kind not in ("weights", "port"))


def _note(name: str) -> str:
    return f"/* {name}: written by `hexane codegen`. */\n"


def _header(plan: PlanView, name: str, bodies: Bodies) -> str:
    upper = name.upper()
    lines = [_note(name), f"#ifndef {upper}_H_", f"#define {upper}_H_", "", '#include "hexane.h"', ""]
    ports = plan.port_bytes
    for what, size in (("PLAN", len(plan.data)), ("WEIGHT", plan.weight_bytes), ("PORT", ports)):
        lines.append(f"#define {upper}_{what}_BYTES {size}u")

    def arena(found: Assignment | None) -> list[str]:
        return [f"#define {upper}_ARENA_BYTES {arena_bytes(plan, found)}u"]

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
        f"extern const unsigned char {name}_plan[{upper}_PLAN_BYTES];",
        f"extern hx_net {name}_net; /* after {name}_load() */",
        "",
        "/* Verifies the plan and makes it ready. Where this is not HX_OK, the error is in the net. */",
        f"hx_status {name}_load(void);",
        "",
        "/* The memory of a port. The next run reads inputs from there and writes outputs there, see hx_run()."
        + ("\n" + _STREAMED.replace("NAME", name) if plan.streams else " */"),
        f"void* {name}_input(unsigned index);",
        f"void* {name}_output(unsigned index);",
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
        "#define ALIGNED(bytes) /* the loader says if it is not so by itself */",
        "#endif",
        "",
    ]
    rows = []
    streamed = {port.space for port in (*plan.inputs, *plan.outputs) if port.rows}
    for i, space in enumerate(plan.spaces):
        sizes = [_memory_bytes(plan, found, i) for found in bodies.values()] or [space.bytes]
        if space.kind == "weights" or max(sizes) == 0 or i in streamed:
            rows.append("    {0, 0},")
            continue
        alignment = max(space.alignment, ALIGNMENT if bodies and space.kind == "arena" else 8)

        def memory(found: Assignment | None, i: int = i, alignment: int = alignment) -> list[str]:
            size = max(_memory_bytes(plan, found, i), 1)
            return [f"static unsigned char memory_{i}[{size}] ALIGNED({alignment});"]

        lines += _by_extension(bodies, memory) if bodies else memory(None)
        rows.append(f"    {{memory_{i}, sizeof memory_{i}}},")
    lines += ["", f"static hx_memory memory[{max(len(rows), 1)}] = {{", *(rows or ["    {0, 0},"]), "};", ""]
    lines.append(f"static const hx_kernel* const kernels[] = {{{''.join(f'&hx_kernel_{k}, ' for k in kernels)}0}};")
    lines.append(
        f"static const hx_activation* const activations[] = {{{''.join(f'&hx_activation_{a}, ' for a in activations)}0}};"
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
    """The steps that have a body, with what it needs; the last row is no step."""
    lines = []
    for i, kernel, body in bodies["dsp"].steps:
        if not isinstance(body, Body):
            lines.append(f"/* Step {i}, {kernel}: {body}. */")
            continue
        for what in ("multipliers", "shifts", "biases"):
            if values := getattr(body, what):
                lines.append(f"static const int32_t {what}_{i}[] = {{{', '.join(map(str, values))}}};")

    def table(found: Assignment) -> list[str]:
        return ["static const hx_body_step body_steps[] = {", *_body_rows(found), "    {0, 0, 0, 0, 0, 0, 0, 0}};"]

    return [*lines, *_by_extension(bodies, table)]


def _body_rows(found: Assignment) -> list[str]:
    rows = []
    for i, _, body in found.steps:
        if isinstance(body, Body):
            place = found.scratch.get(i, Scratch(0, 0, 0))
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


def _main(plan: PlanView, name: str) -> str:
    upper = name.upper()
    moves = {
        side: [
            f'  if (!port_{verb}({name}_{side}({i}), {upper}_{side.upper()}_{i}_BYTES)) return failed("{side}", "{what}");'
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
        "/* Reads the inputs from input.bin, runs the network once and writes the outputs to output.bin. */",
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
    """The hook of the runtime, which gives 0 if all is well, by the function of the port, which gives 0 if not."""
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


def _pattern(plan: PlanView, name: str) -> str:
    rows = [port.rows.bytes if port.rows else 0 for port in plan.inputs]
    items = [dtype(port.dtype).bits // 8 if port.dtype in _PATTERNS else 1 for port in plan.inputs]
    kinds = [_PATTERNS.get(port.dtype, 0) for port in plan.inputs]
    text = _PATTERN_C
    for mark, values in (("ROWS", rows), ("ITEMS", items), ("FLOATS", kinds)):
        text = text.replace(f"@{mark}@", ", ".join(map(str, values)))
    return text.replace("NAME", name)


_PATTERNS = {"fp32": 1}

_PATTERN_C = """\
/* In place of a camera or microphone: a pattern. Element i of row r is n = (31 r + 7 i) % 256: n / 128 - 1 of a float,
 * else each byte n. Your driver is a file with such a function: make INPUT=app/camera.c */
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

_STREAMED = """\
 * Streamed ports have none. Set their hooks behind NAME_load():
 *
 *   static int bring(void* context, uint32_t input, int32_t begin, int32_t end, void* to) {
 *     ...                                wait for rows [begin, end) and write them to `to`, one behind the other
 *     return 0;                          anything else stops the run
 *   }
 *   NAME_net.hooks.input = bring;        for outputs hooks.output, with rows to take in place of rows to bring
 *
 * A run asks for each row once, in order, when its steps need it. */"""


def _makefile(name: str, plan: PlanView, cmsis_nn: bool) -> str:
    left_out = "" if plan.codecs else " -DHX_NO_BLOCKS"
    if not plan.streams:
        left_out += " -DHX_NO_STREAMED_PORTS"
    if plan.only_clamps():
        left_out += " -DHX_ONLY_CLAMPS=1"
    text = _MAKEFILE.replace("@LEFT_OUT@", left_out)
    for place in ("USAGE", "SETTINGS", "OBJECTS", "RULES"):
        text = text.replace(f"@{place}@", _CMSIS_NN[place] if cmsis_nn else "")
    return text.replace("NAME", name)


# Memory of the parts: that of ARM's MPS boards, which emulators have; give those of yours.
_MAKEFILE = """\
# make                        the app for this machine, ./NAME
# make TARGET=cortex-m4       for a microcontroller, NAME.elf; also cortex-m7, cortex-m55
# Memory of the part, for example: make TARGET=cortex-m4 FLASH_BYTES=0x80000 RAM_BYTES=0x20000
# The plan is verified again when it is loaded. VERIFY=0 leaves that out, and 7 KiB of code: `hexane codegen` has done it.
# INPUT=app/pattern.c        streamed inputs from that file's port_input() in place of input.bin (app/port.h)
# MESSAGES=0, as it is for microcontrollers, leaves out what errors say beside the table, row and name, and 5 KiB.
# HOOKS=1 builds `trace` and `yield` of hexane.h, for a main program that sets them: app/main.c does not.
@USAGE@TARGET ?= host
VERIFY ?= 1
HOOKS ?= 0
MESSAGES ?= $(if $(filter host,$(TARGET)),1,0)
SOURCES := NAME.c NAME_plan.c app/main.c $(wildcard src/*.c src/kernels/*.c)
FLAGS := -std=c99 -pedantic -Wall -Wextra -Werror -Wframe-larger-than=1024 -fno-math-errno -ffp-contract=off \\
  -ffunction-sections -fdata-sections -Iinclude@LEFT_OUT@

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
CFLAGS ?= -Os -flto -fipa-pta
SOURCES += app/cortex_m.c
OUTPUT := NAME.elf
FLASH_BEGIN ?= 0
RAM_BEGIN ?= 0x20000000
STACK_BYTES ?= 0x1800
# Without vectors on the M55: GCC 12 writes a conditional instruction for them that its own assembler refuses.
cortex-m55_EXTENSIONS := +nomve
# builtin: copies of a few bytes, of which there are many, are no calls.
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

@SETTINGS@$(OUTPUT): $(SOURCES)@OBJECTS@ Makefile
\t$(CC) $(FLAGS) $(CFLAGS) $(SOURCES)@OBJECTS@ $(LDFLAGS) -o $@
@RULES@
clean:
\trm -rf NAME NAME.elf build

.PHONY: clean
"""

# Its sources are not ours to warn about; hosted, for then GCC has its own memcpy and memset for them.
_CMSIS_NN = {
    "USAGE": """\
# CMSIS_NN=FOLDER             where CMSIS-NN 7.0.0 or another version with the same functions is, which computes some of the steps
""",
    "SETTINGS": """\
ifneq ($(MAKECMDGOALS),clean)
ifeq ($(wildcard $(CMSIS_NN)/Include/arm_nnfunctions.h),)
$(error CMSIS_NN: got "$(CMSIS_NN)", need the folder of CMSIS-NN, with Include/arm_nnfunctions.h: make CMSIS_NN=FOLDER)
endif
endif
SOURCES += cmsis_nn/cmsis_nn.c
FLAGS += -DHX_BODIES -isystem $(CMSIS_NN)/Include
CMSIS_NN_OBJECTS := $(patsubst $(CMSIS_NN)/Source/%.c,build/$(TARGET)/%.o,$(wildcard $(CMSIS_NN)/Source/*/*.c))

""",
    "OBJECTS": " $(CMSIS_NN_OBJECTS)",
    "RULES": """
build/$(TARGET)/%.o: $(CMSIS_NN)/Source/%.c Makefile
\t@mkdir -p $(@D)
\t$(CC) $(FLAGS) $(CFLAGS) -std=gnu11 -fhosted -w -c $< -o $@
""",
}
