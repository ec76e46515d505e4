"""A plan as the C99 generator reads it, and the runtime's files and kernels."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from hexane import _core
from hexane.dtypes import dtype
from hexane.emit.blocks import unpacked_weights
from hexane.emit.cmsis_nn import EXTENSIONS, Assignment, assigned
from hexane.emit.plan import ABSENT
from hexane.errors import Error
from hexane.graph import Array
from hexane.ops import OPS
from hexane.ops.records.control import COND
from hexane.ops.records.control import LOOP as LOOP_OP
from hexane.ops.records.recurrent import FUNCTIONS, LOOP
from hexane.targets.query import chip_names

_C99 = "; compile the model with --runtime c99 (hx.Memory(runtime='c99')), which "
_INSTEAD = {  # advice about kernels that the C99 runtime lacks
    **dict.fromkeys(("decode", "sparse_conv", "sparse_matmul"), f"{_C99}stores this weight whole"),
    **dict.fromkeys(
        (
            *("topk", "reduce_l1_norm", "reduce_l2_norm", "reduce_log_sum", "reduce_log_sum_exp", "log_softmax"),
            *("batch_norm", "instance_norm", "scaled_dot_product_attention", "rotary_embedding", "mish"),
        ),
        f"{_C99}writes it as other ops",
    ),
}
# Kernels whose integer code is a separate part of the runtime.
_INTEGERS = {
    *("add", "sub", "mul", "real_div", "floor_div", "mod", "fmod", "maximum", "minimum", "pow", "prelu"),
    *("bitwise_and", "bitwise_or", "bitwise_xor", "shift_left", "shift_right"),
    *("abs", "neg", "sign", "relu", "square", "clip"),
    *("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod"),
}
_INSTALLED = Path(__file__).parents[1] / "c99"  # the sources in an installed package
_CHECKOUT = Path(__file__).parents[3]


def runtime_files() -> dict[str, Path]:
    """Returns the runtime's C files by their path in it, and plan.h, which the compiler also uses."""
    root = _INSTALLED if _INSTALLED.is_dir() else _CHECKOUT / "csrc" / "c99"
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
    """A memory of a plan: its name, its kind, bytes, and alignment."""

    name: str
    kind: str
    bytes: int
    alignment: int


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a streamed port that the runtime's hooks transfer: their count, and bytes of each. shape, strides: of
    the view of all rows in the port's array."""

    count: int
    bytes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def view(self, array: Array) -> Array:
        """Returns a view of the contiguous array of the port as its rows."""
        return np.ndarray(self.shape, array.dtype, array, 0, self.strides)


@dataclass(frozen=True, slots=True)
class Port:
    """A port. rows: the rows of a streamed port, else None."""

    name: str
    space: int
    dtype: str
    shape: tuple[int, ...]
    rows: Rows | None = None

    @property
    def text(self) -> str:
        """Returns a C comment: the port's name and type, and its rows."""
        text = f"{self.name.encode('ascii', 'replace').decode().replace('*/', '* /')}: {self.dtype}{list(self.shape)}"
        if self.rows is None:
            return text
        item = dtype(self.dtype).bits // 8
        axes = {(n, item * prod(self.shape[i + 1 :])): str(i) for i, n in enumerate(self.shape) if n > 1}
        inner = [axes.get(one) for one in zip(self.rows.shape[2:], self.rows.strides[2:], strict=True) if one[0] > 1]
        order = (
            ""
            if None in inner
            else f", each with the axes {', '.join(map(str, inner))}, of which the last changes fastest"
        )
        text += f"; streamed in {self.rows.count} rows of {self.rows.bytes} bytes{order if len(inner) > 1 else ''}"
        if not self.in_other_order:
            return text
        image = " (pixels, channels fastest: NHWC, not NCHW)" if len(self.shape) == 4 and inner == ["3", "1"] else ""
        return f"{text}{image}. The arrays of `hexane run` have another order: transpose them"

    @property
    def in_other_order(self) -> bool:
        """True if the streamed rows are not in the order of the port's array in memory."""
        if self.rows is None:
            return False
        item = dtype(self.dtype).bits // 8
        dims = [one for one in zip(self.rows.shape, self.rows.strides, strict=True) if one[0] > 1]
        return any(stride != item * prod(n for n, _ in dims[i + 1 :]) for i, (_, stride) in enumerate(dims))


# In the order of hx_dtype in internal.h.
_DTYPES = ("bool", "int8", "uint8", "int16", "uint16", "fp16", "int32", "uint32", "fp32", "int64", "uint64", "fp64")


class PlanView:
    """The parts of a plan that the code generator reads. Raises Error for an invalid plan."""

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
        return text_at(self._strings, offset)

    def bodies(self) -> dict[str, Assignment]:
        """Returns CMSIS-NN's steps and their scratch for each of EXTENSIONS. All extensions have the same steps."""
        without: dict[int, str] = {}
        while True:
            result = {one: assigned(self.sections, one, self.item_bytes, without) for one in EXTENSIONS}
            reasons = [{i: body for i, _, body in one.steps if isinstance(body, str)} for one in result.values()]
            if all(those == reasons[0] for those in reasons):
                return result
            without = {i: reason for those in reasons for i, reason in those.items()}

    def _port(self, row: Any) -> Port:
        tensor = self.sections["tensors"][row["tensor"]]
        shape = tuple(int(d) for d in tensor["shape"][: tensor["rank"]])
        space = int(tensor["space"])
        rows = self._rows(space, tensor) if row["streamed"] else None
        return Port(self.string(row["name"]), space, self.string(tensor["dtype"]), shape, rows)

    def _rows(self, space: int, whole: Any) -> Rows:
        """Returns the rows in which the only step that uses the port reads or writes it. If no step uses the port, the
        whole port is one row."""
        tensors = self.sections["tensors"]
        used = [tensors[i] for i in self.sections["operands"].tolist() if i != ABSENT and tensors[i]["space"] == space]
        tensor = used[0] if used else whole
        shape, strides = (tuple(map(int, tensor[field][: tensor["rank"]])) for field in ("shape", "strides"))
        count = shape[1] if len(shape) > 1 and shape[0] == 1 else 1
        size = prod(shape) * dtype(self.string(tensor["dtype"])).bits // 8
        return Rows(count, size // max(count, 1), shape, strides)

    @property
    def port_bytes(self) -> int:
        """Returns the bytes of inputs and outputs that are not streamed."""
        return sum(self.spaces[port.space].bytes for port in (*self.inputs, *self.outputs) if not port.rows)

    @property
    def streams(self) -> bool:
        return any(port.rows for port in (*self.inputs, *self.outputs))

    @cached_property
    def nested(self) -> list["PlanView"]:
        """The plans of the bodies of the plan's loops and branches."""
        bodies = []
        for step in self.sections["steps"]:
            count = {LOOP_OP: 1, COND: 2}.get(self.string(step["kernel"]), 0)
            for id in self.sections["operands"][step["operands"] :][:count].tolist():
                row = self.sections["tensors"][id]
                weights = unpacked_weights(self.sections)
                begin, size = int(row["offset"]), int(row["shape"][0])
                bodies.append(PlanView(weights[begin : begin + size].tobytes()))
        return bodies

    def used(self) -> tuple[list[str], list[str]]:
        """Returns the kernels and activations of the steps and their bodies. Raises Error for a kernel or activation
        that the runtime lacks."""
        kernels, activations = supported()
        layouts = {row["name"]: row["attrs"] for row in _core.kernels()}
        used: set[str] = set()
        functions: set[str] = set()
        for index, step in enumerate(self.sections["steps"]):
            name = self.string(step["kernel"])
            applied = {name} & set(activations)
            if name not in kernels and not applied:
                raise self._missing(index, "kernel", name, [*kernels, *activations])
            used.add("unary" if applied else name)
            if layouts[name].endswith("epilogue:E"):
                applied |= self._slots(step) - {"add", "relu", "relu6", "clip"}
            if name == LOOP:
                applied = self._cell_functions(step)
            for function in sorted(applied - set(activations)):
                raise self._missing(index, "activation", function, activations)
            functions |= applied
        for body in self.nested:
            more = body.used()
            used.update(more[0])
            functions.update(more[1])
        return sorted(used), sorted(functions)

    def _missing(self, index: int, what: str, name: str, need: Sequence[str]) -> Error:
        got = f"got the {what} {name}, which the C99 runtime lacks"
        way = _INSTEAD.get(name) or self.way_to_host()
        return Error(f"[codegen] {self.step_text(index)}: {got}, need one of {', '.join(need)}{way}")

    def step_text(self, index: int) -> str:
        """Returns a text such as "step 3, softmax at model.py:7": the step's index, its op and, if known, its source in
        the model."""
        step = self.sections["steps"][index]
        kernel, source = self.string(step["kernel"]), self.string(step["source"])
        known = not source or " at " in source or source in OPS
        return f"step {index}, {source or kernel}" if known else f"step {index}, {kernel} at {source}"

    def way_to_host(self) -> str:
        """Returns advice for a plan that was compiled for a chip, else ""."""
        target = next((self.string(row["name"]) for row in self.sections["numerics"]), "host")
        if target not in chip_names():
            return ""
        return f"; it is for {target}: compile the model with --target host (target='host')"

    def only_clamps(self) -> bool:
        """True if epilogues only clamp, and every quantised product has an 8-bit result."""
        layouts = {row["name"]: row["attrs"] for row in _core.kernels()}
        for step in self.sections["steps"]:
            name = self.string(step["kernel"])
            if layouts[name].endswith("epilogue:E") and not self._slots(step) <= {"relu", "relu6", "clip"}:
                return False
            out = self.sections["operands"][step["operands"] + step["num_inputs"]]
            dtype = self.string(self.sections["tensors"][out]["dtype"])
            if name in ("quantized_conv", "quantized_matmul") and dtype not in ("int8", "uint8"):
                return False
        return all(body.only_clamps() for body in self.nested)

    def dtype_bits(self) -> int:
        """Returns the dtypes of the plan's tensors, as a bit mask in the order of the runtime's hx_dtype."""
        used = {self.string(at) for at in set(self.sections["tensors"]["dtype"].tolist())}
        bits = sum(1 << _DTYPES.index(name) for name in used if name in _DTYPES)
        for body in self.nested:
            bits |= body.dtype_bits()
        return bits

    def has_integers(self) -> bool:
        """True if a step computes with integers, except for quantised ops."""
        for step in self.sections["steps"]:
            out = self.sections["operands"][step["operands"] + step["num_inputs"]]
            if (
                self.string(step["kernel"]) in _INTEGERS
                and self.string(self.sections["tensors"][out]["dtype"]) != "fp32"
            ):
                return True
        return any(body.has_integers() for body in self.nested)

    def has_states(self) -> bool:
        """True if the plan has memory that lasts from run to run, or with initial contents."""
        return any(space.bytes and space.kind in ("state", "param") for space in self.spaces)

    def _cell_functions(self, step: Any) -> set[str]:
        """Returns the activations of a recurrent step: its last attribute is a count and their indices."""
        end = int(step["attrs"]) + int(step["attrs_bytes"])
        words = np.frombuffer(bytes(self.sections["attrs"])[end - 9 * 8 : end], np.int64).tolist()
        names = sorted(FUNCTIONS)
        return {names[i] for i in words[1 : 1 + words[0]]}

    def _slots(self, step: Any) -> set[str]:
        """Returns the functions in a step's epilogue: its last attribute is a count and four slots of four words."""
        end = int(step["attrs"]) + int(step["attrs_bytes"])
        words = np.frombuffer(bytes(self.sections["attrs"])[end - 17 * 8 : end], np.int64)
        return {self.string(int(words[1 + 4 * i])) for i in range(int(words[0]))}


def extent(tensor: Any, item: int) -> int:
    """Returns the bytes from a tensor's first element to the end of its last."""
    shape = tensor["shape"][: tensor["rank"]].tolist()
    steps = zip(shape, tensor["strides"][: tensor["rank"]].tolist(), strict=True)
    return 0 if 0 in shape else item + sum((extent - 1) * stride for extent, stride in steps)


def text_at(strings: bytes, offset: int) -> str:
    return strings[offset : strings.index(b"\0", offset)].decode()


def memory_bytes(plan: PlanView, assignment: Assignment | None, space: int) -> int:
    """Returns the bytes of a space, with the scratch of steps."""
    return plan.spaces[space].bytes if assignment is None else assignment.sizes.get(space, plan.spaces[space].bytes)


def arena_bytes(plan: PlanView, assignment: Assignment | None) -> int:
    """Returns the bytes of all arenas and states, with the scratch of steps."""
    kinds = [space.kind for space in plan.spaces]
    return sum(memory_bytes(plan, assignment, i) for i, kind in enumerate(kinds) if kind not in ("weights", "port"))
