"""Compiles a model of any form, and loads compiled ones."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hexane import _core
from hexane.build import Tensor, graph
from hexane.dump import Dump
from hexane.emit.plan import emit_plan
from hexane.errors import Error
from hexane.graph import Graph
from hexane.importers.files import is_written_model
from hexane.importers.written import load_written_model
from hexane.passes.legalize.narrow_ports import narrow_ports
from hexane.pipeline import Watch, compile_graph
from hexane.program import Program
from hexane.runtime import engine
from hexane.runtime.cache import Cache, find_cache
from hexane.runtime.chip import chip_program
from hexane.runtime.collector import collector_paused
from hexane.runtime.engine import OnEngine
from hexane.runtime.flash import in_flash
from hexane.runtime.memory import Memory, fitted, slow_traffic
from hexane.runtime.model import Model, PortType
from hexane.runtime.open_model import OpenModel, Shapes, Values
from hexane.stages.schedule_layers import SCHEDULES
from hexane.targets import Chip, Target, load_target
from hexane.targets.detect import lookup_environment
from hexane.targets.dispatch import dispatch


def compile(
    model: Any,
    *,
    target: str | Target | None = None,
    threads: int | None = None,
    dtype: str = "",
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    input_values: Mapping[str, Any] | None = None,
    updates: Sequence[Tensor] = (),
    trim_output_transpose: bool = False,
    cache_bytes: int = 1 << 30,
    stream_rows: int = 0,
    memory: Memory | None = None,
    hold_ports: bool = False,
    stream_input: bool = False,
    stream_output: bool = False,
    schedule: str = "",
    fallback: str = "host",
    io: str = "",
    numerics: str = "",
    device: str = "auto",
    qos: int | None = None,
    cache: Cache | str | os.PathLike[str] | bool | None = None,
    dump: str | os.PathLike[str] | None = None,
) -> Model | OpenModel:
    """Compiles a model: a tensor, a list or dict of tensors, a Graph, an ONNX model (path, bytes, ModelProto), or the path of MIL text
    (.mil) or of a netplist (.plist), whose weights lie beside it.

    target: the chip of this machine where it has a Neural Engine, elsewhere and for device="cpu" "host", or what HEXANE_TARGET says.
    "host" runs on this CPU in the model's own dtypes. A chip ("h13", "M1"): what it
    takes is computed in fp16, as one segment after the other, by this CPU in its place; the rest goes to the host in the model's
    dtypes, with one FallbackWarning that names ops and reasons. fallback="error" raises Error with the same list.
    io="fp16": the floats of inputs and outputs are fp16, without casts at the ports.
    numerics: whose arithmetic this CPU computes a chip's program in. "engine", what it is for a chip unless given: the chip's, as
    far as that is known (docs/numerics.md): convolutions and matrix products to the bit, in fixed point, with its overflows,
    dropped products and Winograd convolutions; elementwise ops, casts, activations by table, pools, sums, softmax, attention and
    norms by rules of which some are open. The rest is computed in IEEE arithmetic. The program's decisions say which is which.
    "ieee": fp32 inside the chip's layers, each rounded to fp16, which is faster. What is left for the host is IEEE arithmetic in
    both, and so are the casts at the ports, which the host does. "q31", for the host: quantised ops as TFLite and many small devices
    compute them, by a multiplier in Q0.31 and a shift (docs/numerics.md); without it they are computed as ONNX defines them.
    device: where a chip's program runs. "ane": what the engine takes on the Neural Engine itself, with the host for the rest; Error
    that says what is missing where this machine has none. "cpu": all of it on the CPU. "auto": the engine where there is one, and
    `device` of the result says what was chosen and why.
    qos: the class of the engine's queues that calls wait in, 0 to 63 (docs/macos.md); it has no effect on the CPU.
    dtype="fp16" stores everything between the ports in fp16 and accumulates in fp32. threads: all cores this process may use,
    unless given.
    input_shapes and input_values fix an ONNX model's free dims and the inputs whose values decide shapes; where they are open,
    the result compiles itself for each call's, and keeps what it compiled while that takes at most cache_bytes beside the weights,
    which all of it shares. An input with an initializer may be left out; a call that gives it by name compiles the model once
    more, with that input. updates: results of write_state to run though no output depends on them.
    trim_output_transpose: outputs come in the layout they were computed in (channels last, for images), as `outputs` of the
    result then says, without the transposes at the end.
    stream_rows: parts of the program that work on one image (convolutions, pools, elementwise ops, concatenations) compute so many
    rows at a time, with a few rows between their steps instead of whole tensors. The parts are those by which the arena becomes
    smallest. The bits are the same. 0: none.
    memory=hx.Memory(sram="128K"), or "128K+64K" for two memories: the arena, and the scratch that kernels of this CPU use beside it (with runtime="c99" the inputs and outputs of a small device), take no more than so much. Whole
    tensors where they fit, else parts of the program are computed row by row as by stream_rows, 8, 4, 2 or 1 rows at a time; Error
    that names the layer which needs most where that does not fit either; or in stages, with strategy="stages" (docs/memory.md). Weights are not counted, and inputs and outputs only for runtime="c99". With flash="1M" the
    plan and the code that runs it on a microcontroller take no more than that; compress="lz4" packs weights, xip=True only those that have to be.
    hold_ports: inputs and outputs lie in the arena too and are counted there, each as long as it is needed and as the network first or
    last computes with it (an int8 network's as bytes); the call's own arrays are only copied or cast from and to.
    stream_input, stream_output: for a device without memory for all of an input or output. Its rows go through the arena, in order and each
    once; computed by rows, few of them lie there. There the C99 runtime calls for them; here they are copied from and to the arrays.
    schedule="optimal" looks for the order of steps that keeps fewest bytes live at once, which takes at most some seconds longer;
    networks whose layers follow one another gain nothing, randomly wired ones a tenth or more of the arena. For a chip it orders the
    layers of its engine, for which "apple", the list scheduler of the engine's own compiler, is the usual order.
    cache: where what the engine's compiler made of a program is kept, so that the next process need not compile it: a folder, an
    hx.Cache (which has a limit), False for nowhere; else the folder of HEXANE_CACHE_DIR ("off": nowhere), or the user's for such
    files (docs/cache.md).
    dump: a folder that gets the printed graph after each pass (00-graph.txt, 01-expand.txt, ...) and the program, for those who want
    to see what the compiler does; of a model of open shapes, the one compiled last.
    Raises Error for what cannot be imported or compiled, and for arguments that this form of model does not have.
    """
    if isinstance(cache_bytes, bool) or not isinstance(cache_bytes, int) or cache_bytes < 0:
        raise Error(f"[compile] cache_bytes: got {cache_bytes!r}, need a number of bytes")
    options = _Options(
        _target(target, device),
        _threads(threads),
        dtype,
        trim_output_transpose,
        stream_rows,
        memory,
        hold_ports,
        stream_input,
        stream_output,
        schedule,
        fallback,
        io,
        numerics,
        device,
        qos,
        find_cache(cache),
        dump,
    )
    options.check()
    tensors = isinstance(model, (Tensor, Mapping)) or (
        isinstance(model, Sequence) and not isinstance(model, (str, bytes))
    )
    if updates and not tensors:
        raise Error(
            f"[compile] updates: got some with {type(model).__name__}, need tensors (hx.graph takes updates too)"
        )
    if (tensors or isinstance(model, Graph) or is_written_model(model)) and (input_shapes or input_values):
        raise Error("[compile] input_shapes, input_values: got some for a model of fixed shapes, need an ONNX model")
    if isinstance(model, Graph):
        return options.build(model)
    if tensors:
        return options.build(graph(model, updates))
    if is_written_model(model):
        return options.build(load_written_model(model))
    if not isinstance(model, (str, bytes, os.PathLike)) and type(model).__name__ != "ModelProto":
        raise Error(
            f"[compile] got {type(model).__name__}, need tensors, a Graph, or an ONNX path, bytes or ModelProto; a torch module becomes a Graph by hexane.from_torch"
        )
    return _compile_onnx(model, options, input_shapes or {}, input_values or {}, cache_bytes)


def _compile_onnx(
    model: Any,
    options: "_Options",
    shapes: Mapping[str, Sequence[int]],
    values: Mapping[str, Any],
    cache_bytes: int,
) -> Model | OpenModel:
    # Loaded where it is used: onnx takes longer to import than all of hexane, and a plan needs none of it.
    from hexane.importers.onnx import SpecialisationNeeded, import_described, import_onnx, signature

    fixed = {k: np.asarray(v) for k, v in values.items()}
    made = None
    try:
        imported, known = import_described(model, shapes, fixed)
        made = options.build(imported)
        if all(p.name in fixed or p.name in shapes for p in known.optional):
            return made
    except SpecialisationNeeded:
        known = signature(model)
    takes = [p for p in (*known.inputs, *known.optional) if p.name not in fixed]
    optional = {p.name for p in known.optional} - shapes.keys()

    pool = _core.MemoryPool()

    def specialise(call_shapes: Shapes, call_values: Values, whole: bool = False) -> Model:
        """whole: with its graph, and weights of its own."""
        free = {p.name: call_shapes[p.name] for p in takes
                if p.name in call_shapes and p.name not in call_values and (p.free or p.name in optional)}  # fmt: skip
        return options.build(
            import_onnx(model, shapes={**free, **shapes}, values={**fixed, **call_values}), None if whole else pool
        )

    ports = {p.name: PortType(p.name, ("...",) if p.dims is None else p.dims, p.dtype) for p in takes}
    required, others = (tuple(p for p in ports.values() if (p.name in optional) is has) for has in (False, True))
    shape_inputs = frozenset(p.name for p in takes if p.shape_input)
    variants = OpenModel(required, known.outputs, shape_inputs, specialise, cache_bytes, others)
    return variants if made is None else made.with_optional(variants)


def load(path: str | os.PathLike[str], *, threads: int | None = None) -> Model:
    """A model saved by `Model.save`. The file is read as a whole: what becomes of it later does not matter.

    Raises Error for a file that cannot be read or is not a valid plan.
    """
    return Model(_core.Program.load(os.fsencode(path), _threads(threads)), why=engine.why_on_cpu())


@dataclass(frozen=True, slots=True)
class _Options:
    target: Target
    threads: int
    dtype: str
    trim: bool
    stream_rows: int
    memory: Memory | None
    hold_ports: bool
    stream_input: bool
    stream_output: bool
    schedule: str
    fallback: str
    io: str
    numerics: str
    device: str
    qos: int | None
    cache: Cache | None
    dump: str | os.PathLike[str] | None

    def check(self) -> None:
        """Raises Error for values that are none of theirs."""
        if self.dtype not in ("", "fp32", "fp16"):
            raise Error(f"[compile] dtype: got {self.dtype!r}, need 'fp16', or 'fp32' for the model's own")
        rows = self.stream_rows
        if isinstance(rows, bool) or not isinstance(rows, int) or not 0 <= rows <= 1 << 20:
            raise Error(f"[compile] stream_rows: got {rows!r}, need an integer from 0 on")
        if self.memory is not None and (isinstance(self.target, Chip) or self.stream_rows):
            raise Error(
                "[compile] memory: got it for a chip or with stream_rows, need the host, where it chooses the rows"
            )
        if self.hold_ports and isinstance(self.target, Chip):
            raise Error(f"[compile] hold_ports: got it for {self.target.label}, need the host")
        for name in ("stream_input", "stream_output"):
            if getattr(self, name) and isinstance(self.target, Chip):
                raise Error(f"[compile] {name}: got it for {self.target.label}, need the host")
        known = ("", *SCHEDULES) if isinstance(self.target, Chip) else ("", "optimal")
        if self.schedule not in known:
            need = ", ".join(map(repr, known[1:]))
            raise Error(f"[compile] schedule: got {self.schedule!r}, need {need}, or '' for the usual order")
        if self.fallback not in ("host", "error"):
            raise Error(f"[compile] fallback: got {self.fallback!r}, need 'host' or 'error'")
        if self.io not in ("", "fp16"):
            raise Error(f"[compile] io: got {self.io!r}, need 'fp16', or '' for the model's dtypes")
        if self.numerics not in ("", "ieee", "engine", "q31"):
            raise Error(
                f"[compile] numerics: got {self.numerics!r}, need 'engine', 'ieee' or 'q31', or '' for what the target computes in"
            )
        if self.numerics == "q31" and isinstance(self.target, Chip):
            raise Error(f"[compile] numerics: got 'q31' for {self.target.label}, need the host as the target")
        if self.numerics == "engine" and not isinstance(self.target, Chip):
            raise Error(f"[compile] numerics: got 'engine' for {self.target.label}, need a chip as the target")
        if self.device not in ("auto", "cpu", "ane"):
            raise Error(f"[compile] device: got {self.device!r}, need 'auto', 'cpu' or 'ane'")
        if self.qos is not None and (type(self.qos) is not int or not 0 <= self.qos <= dispatch().most_qos):
            raise Error(f"[compile] qos: got {self.qos!r}, need an integer from 0 to {dispatch().most_qos}")
        if self.device == "ane":
            if not isinstance(self.target, Chip):
                raise Error(f"[compile] device: got 'ane' for {self.target.label}, need a chip as the target")
            found, missing = engine.find_engine(self.target.name)
            if found is None:
                raise Error(
                    f"[compile] device: got 'ane', need a Neural Engine: {missing}; 'cpu' runs the same program"
                )
            if self.numerics or self.stream_rows:
                raise Error("[compile] numerics, stream_rows: got some for the device 'ane', need the CPU for these")
        if isinstance(self.target, Chip):
            if self.dtype == "fp32":
                raise Error(f"[compile] dtype: got 'fp32' for {self.target.label}, which computes in fp16, need none")
            if self.trim:
                raise Error(f"[compile] trim_output_transpose: got it for {self.target.label}, need the host")

    def build(self, model: Graph, pool: _core.MemoryPool | None = None) -> Model:
        """With a pool, nothing of the weights is kept beside what is in it, so the program is not either."""
        with collector_paused():
            return self._build(model, pool)

    def _build(self, model: Graph, pool: _core.MemoryPool | None) -> Model:
        on_engine, why = self.engine()
        watch = None if self.dump is None else Dump(self.dump)
        program = self.program(model, on_engine, watch)
        made = [] if on_engine is None else on_engine.in_order(program)
        swaps = [(program.buffers[state].space, program.buffers[after].space) for state, after in program.swaps]
        core = _core.Program(emit_plan(program), self.threads, pool, made, swaps)
        if self.memory is not None:
            make = partial(self._make, pool=pool)
            program, core = fitted((program, core), make, self.memory, self.schedule, self.hold_ports)
            program, core = in_flash((program, core), make, self.memory)
            if watch is not None and program.loops:
                watch("program-streamed", program)
        name = "" if on_engine is None else on_engine.device.name
        moved = None if self.memory is None else slow_traffic(program, self.memory)
        return Model(core, None if pool else program, why, name, moved)

    def _make(self, program: Program, pool: _core.MemoryPool | None) -> _core.Program:
        return _core.Program(emit_plan(program), self.threads, pool)

    def engine(self) -> tuple[OnEngine | None, str]:
        """What compiles for the Neural Engine if that is where the program runs, and why it does not run there."""
        if not isinstance(self.target, Chip) or self.device == "cpu":
            return None, ""
        if self.numerics or self.stream_rows:
            return None, "the CPU was asked for by numerics or stream_rows"
        found, missing = engine.find_engine(self.target.name)
        if found is None:
            return None, missing
        return OnEngine(found, self.target, dispatch().default_qos if self.qos is None else self.qos, self.cache), ""

    def program(self, model: Graph, on_engine: OnEngine | None = None, watch: Watch | None = None) -> Program:
        narrow = self.io == "fp16"
        if not isinstance(self.target, Chip):
            graph = narrow_ports(model, self.target) if narrow else model
            return compile_graph(
                graph,
                self.target,
                self.dtype,
                trim=self.trim,
                stream_rows=self.stream_rows,
                schedule=self.schedule,
                watch=watch,
                holds_ports=self.hold_ports,
                numerics=self.numerics,
                streams_input=self.stream_input,
                streams_output=self.stream_output,
            )
        return chip_program(
            model,
            self.target,
            self.fallback,
            self.dtype,
            numerics=self.numerics or "engine",
            narrow=narrow,
            stream_rows=self.stream_rows,
            schedule=self.schedule or "apple",
            watch=watch,
            on_engine=on_engine,
        )


def _target(name: str | Target | None, device: str) -> Target:
    by_environment = os.environ.get("HEXANE_TARGET", "")
    own = "" if device == "cpu" else engine.own_chip()
    if name is not None and name != "":
        return load_target(name)
    return load_target(lookup_environment(by_environment).written if by_environment else own or "host")


def _threads(threads: int | None) -> int:
    if threads is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= 256:
        raise Error(f"[compile] threads: got {threads!r}, need an integer in 1..256")
    return threads
