"""The stand-in for Core ML. Tests skip where it is not built. It computes with Hexane's own CPU program of the package."""

import ctypes as c
import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane import sources
from hexane.graph import Graph
from hexane.runtime import coreml_library
from hexane.runtime.coreml_library import NUMPY_OF, CoreML
from stand_in import BUILD, LIBRARY, needs_stand_in

FRAMEWORK = BUILD / "libfake_coreml.so"
DEFAULTS = {"macos": 2600, "uses_backings": 1, "raise": 0, "new_arrays": 0, "refuse_locks": 0, "moves": 0}
COREML_DTYPE = {kind.name: name for name, kind in NUMPY_OF.items()}


class Value(c.Structure):
    _fields_ = (("name", c.c_char_p), ("side", c.c_char_p), ("data", c.c_void_p), ("bytes", c.c_size_t))


DESCRIBE = c.CFUNCTYPE(None, c.c_char_p, c.c_void_p)
PREDICT = c.CFUNCTYPE(None, c.c_char_p, c.POINTER(Value), c.c_size_t, c.c_void_p)


class CoreMLStandIn:
    """devices: what the plan says of ops, by the operator in MIL: (preferred, supported)."""

    kept: Any = None  # the framework has these functions, which stay alive

    def __init__(self, devices: Mapping[str, tuple[str, str]] | None = None) -> None:
        self.framework = c.CDLL(str(FRAMEWORK))
        self.framework.fake_coreml_set.argtypes = (c.c_char_p, c.c_int64)
        self.framework.fake_coreml_set.restype = c.c_bool
        for name in ("live", "faults", "units"):
            getattr(self.framework, f"fake_coreml_{name}").restype = c.c_int64
        self.devices, self.lines = devices or {}, []  # type: tuple[Mapping[str, tuple[str, str]], list[str]]
        self.models: dict[str, tuple[Graph, hx.Model]] = {}
        self._ids = itertools.count()
        CoreMLStandIn.kept = DESCRIBE(self._describe), PREDICT(self._predict)
        self.framework.fake_coreml_set_host(*CoreMLStandIn.kept)
        self.set(**DEFAULTS)
        self.api = CoreML(LIBRARY, str(FRAMEWORK))

    def set(self, **values: int) -> None:
        for name, value in values.items():
            assert self.framework.fake_coreml_set(name.encode(), value), name

    def ask(self, name: str) -> int:
        return int(getattr(self.framework, f"fake_coreml_{name}")())

    def _describe(self, package: bytes, reply: int) -> None:
        try:
            text = self._description(Path(package.decode()))
            self.framework.fake_coreml_answer(c.c_void_p(reply), text.encode())
        except Exception as error:
            self.framework.fake_coreml_refuse(c.c_void_p(reply), str(error).encode())

    def _description(self, package: Path) -> str:
        from hexane.importers.coreml.package import open_package

        graph = sources.open_network(package).graph()
        model = hx.compile(graph, target="host", device="cpu", threads=1)
        assert isinstance(model, hx.Model)
        name = f"m{next(self._ids)}"
        self.models[name] = graph, model
        lines = [f"id {name}"]
        described = open_package(package).spec.description
        images = {f.name for f in described.input if f.type.HasField("imageType")}
        for side, ports in (
            ("input", [(str(v.node.attrs["name"]), v.type) for v in graph.inputs]),
            ("output", [(p.name, p.value.type) for p in graph.outputs]),
            ("state", [(str(n.attrs["name"]), n.types[0]) for n in graph.nodes if n.op == "state"]),
        ):
            for port, kind in ports:
                shape = ",".join(map(str, kind.shape or (1,)))
                lines.append(f"image {port}" if port in images else f"{side} {port} {kind.dtype.name} {shape}")
        program = open_package(package).spec.mlProgram
        for function in program.functions.values():
            for block in function.block_specializations.values():
                for op in block.operations:
                    preferred, supported = self.devices.get(op.type, ("ne", "cpu,gpu,ne"))
                    if op.type == "const" or op.type.startswith("constexpr"):
                        preferred = supported = "-"
                    output = op.outputs[0].name if op.outputs else "-"
                    lines.append(f"op ios16.{op.type} {output} {preferred} {supported} 0.125")
        return "\n".join([*lines, *self.lines])

    def _predict(self, name: bytes, rows: Any, count: int, reply: int) -> None:
        try:
            graph, model = self.models[name.decode()]
            kinds = {("input", str(v.node.attrs["name"])): v.type for v in graph.inputs}
            kinds |= {("output", p.name): p.value.type for p in graph.outputs}
            kinds |= {("state", str(n.attrs["name"])): n.types[0] for n in graph.nodes if n.op == "state"}
            views = {}
            for row in rows[:count]:
                key = row.side.decode(), row.name.decode()
                data = (c.c_char * row.bytes).from_address(row.data)
                views[key] = np.frombuffer(data, kinds[key].dtype.numpy).reshape(kinds[key].shape)
            sides = {side: {n: a for (s, n), a in views.items() if s == side} for side in ("input", "output", "state")}
            context = model.context()
            for state, array in sides["state"].items():
                context.write_state(state, array)
            found = context(sides["input"])
            for port, array in sides["output"].items():
                array[...] = found[port] if isinstance(found, dict) else found
            for state, array in sides["state"].items():
                array[...] = context.read_state(state)
        except Exception as error:
            self.framework.fake_coreml_refuse(c.c_void_p(reply), str(error).encode())


@contextmanager
def coreml_stand_in(devices: Mapping[str, tuple[str, str]] | None = None) -> Iterator[CoreMLStandIn]:
    """In the place of this machine's Core ML."""
    needs_stand_in()
    if not FRAMEWORK.exists():
        pytest.skip("no stand-in for Core ML: 'make stand-in' builds it")
    made = CoreMLStandIn(devices)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coreml_library, "own_coreml", lambda where="compile": made.api)
        yield made
        made.set(**DEFAULTS)
