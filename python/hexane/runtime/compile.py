"""Compiles a model from any source."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hexane import _core, sources
from hexane.build import Tensor, graph
from hexane.compression import Compression
from hexane.dtypes import FP32
from hexane.emit.plan import emit_plan
from hexane.errors import Error, InputError
from hexane.graph import Array, Graph
from hexane.graph.printer import size_text
from hexane.importers.likely_shapes import likely_shapes
from hexane.importers.signature import ComputedShapes, Input, SpecialisationNeeded, known_dims
from hexane.lowering.kept_constants import KeptConstants, constants_kept
from hexane.memory import Memory
from hexane.options import DEFAULTS, AutoDtype, Device, Options
from hexane.passes.legalize.narrow_ports import narrow_ports
from hexane.passes.run import Watch
from hexane.pipeline import compile_graph
from hexane.planning.search import slow_traffic
from hexane.program import Program
from hexane.runtime import engine
from hexane.runtime.auto_dtype import ChosenProducts, choose_products, in_fp32
from hexane.runtime.chip import chip_program
from hexane.runtime.collector import collector_paused
from hexane.runtime.compressed import Compressed, Feeds, compressed, relative_error
from hexane.runtime.coreml_model import compile_on_coreml
from hexane.runtime.dump import Dump
from hexane.runtime.model import Model, PortType
from hexane.runtime.on_engine import OnEngine, in_order
from hexane.runtime.open_model import OpenModel, Shapes, Values
from hexane.runtime.staged_model import StagedModel
from hexane.sources.module import Stages
from hexane.targets import Chip, Target, load_target
from hexane.targets.detect import lookup_environment
from hexane.targets.dispatch import dispatch


def compile(
    model: Any,
    options: Options | None = None,
    *,
    target: str | Target | None = None,
    device: str | Device | None = None,
    dtype: str | AutoDtype | None = None,
    numerics: str | None = None,
    fallback: str | None = None,
    repair: bool | None = None,
    io: str | None = None,
    threads: int | None = None,
    contexts: int | None = None,
    schedule: str | None = None,
    trim_output_transpose: bool | None = None,
    compress: str | Compression | None = None,
    memory: Memory | None = None,
    dump: str | os.PathLike[str] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    input_values: Mapping[str, Any] | None = None,
    updates: Sequence[Tensor] = (),
) -> Model | OpenModel | StagedModel:
    """Compiles a model: a tensor, a list or dict of tensors, a Graph, an ONNX model (path, bytes, ModelProto), or the
    path of MIL text (.mil), of a netplist (.plist; its weights are in the same folder), of a Core ML package
    (.mlpackage), of a Core AI asset (.aimodel; "net.aimodel#decode" for one of its functions) or of the Hugging Face
    folder of an encoder of texts or images.

    options: an hx.Options, which documents its fields; keywords of the same names replace them. In short: target="h13"
    compiles for a chip; its program runs on this CPU in the chip's arithmetic, or on this machine's Neural Engine
    (device); memory=hx.Memory(sram="128K") limits memory; threads=1 uses one core; contexts=4 lets four calls run at
    the same time; compress="palette4" stores weights in four bits.

    input_shapes, input_values: fix the free dims of an ONNX model or an asset, and the inputs of an ONNX model whose
    values decide shapes. If an ONNX model's dims or values stay open, the result compiles itself for the shapes and
    values of each call, and caches the variants up to the limit `memory.variants`. An input with an initializer may be
    omitted; a call that gives it by name compiles a variant with that input. A model with computed shapes, such as a
    speech synthesiser, is compiled in parts (StagedModel). updates: results of write_state that must run although no
    output depends on them.

    Raises Error if the model cannot be imported or compiled, and for arguments that this kind of model does not allow.
    """
    fields = {"target": target, "device": device, "dtype": dtype, "numerics": numerics, "fallback": fallback, "io": io,
              "repair": repair, "threads": threads, "contexts": contexts, "schedule": schedule,
              "memory": memory, "compress": compress,
              "trim_output_transpose": trim_output_transpose, "dump": dump}  # fmt: skip
    asked = (options or DEFAULTS).given(fields)
    on_coreml = asked.placed.kind == "coreml"
    compiler = None if on_coreml else _Compiler.of(asked)
    opened = sources.open_network(model, where="compile")
    if updates:
        if opened.form != "tensors":
            raise Error(f"[compile] updates: got some with {opened.title}, need tensors (hx.graph takes updates too)")
        opened = sources.open(graph(opened.source, updates))
    if compiler is None:
        return compile_on_coreml(opened, asked, input_shapes or {}, input_values or {})
    return _compile_function(opened.function(), compiler, input_shapes or {}, input_values or {})


def _compile_function(
    function: sources.Function,
    compiler: "_Compiler",
    shapes: Mapping[str, Sequence[int]],
    values: Mapping[str, Any],
    example: Mapping[str, Array] | None = None,
    inlined: bool = False,
) -> Model | OpenModel | StagedModel:
    """Compiles a function, in parts if it has computed shapes. example: inputs for a trial import; None: arrays of the
    number 1 in likely shapes. inlined: True for a model whose functions are inlined."""

    def in_parts(error: ComputedShapes, example: Mapping[str, Array] | None) -> Model | OpenModel | StagedModel:
        if not error.names and function.inlined is not None and not inlined:
            return _compile_function(function.inlined(), compiler, shapes, values, example, inlined=True)
        stages = None if function.stages is None else function.stages(error.names)
        if stages is None:
            raise error
        return _staged(function, stages, compiler, shapes, values, example)

    try:
        return _compile_at_once(function, compiler, shapes, values, example, in_parts)
    except ComputedShapes as error:
        return in_parts(error, example)


def _staged(
    function: sources.Function,
    stages: Stages,
    compiler: "_Compiler",
    shapes: Mapping[str, Sequence[int]],
    values: Mapping[str, Any],
    example: Mapping[str, Array] | None,
) -> StagedModel:
    known = function.signature
    types = {result.name: result for result in known.results}
    halves = compiler.options.io == "fp16"  # only ports are fp16: values between the parts need the range of fp32
    compiler = replace(compiler, options=replace(compiler.options, io=""))
    outputs = [types.get(name, Input(name, FP32, None)) for name in known.outputs]

    def build(part: sources.Function, arrays: Mapping[str, Array] | None) -> Model | OpenModel | StagedModel:
        own = {i.name for i in (*part.signature.inputs, *part.signature.optional)}
        own_shapes = {name: shape for name, shape in shapes.items() if name in own}
        own_values = {name: value for name, value in values.items() if name in own}
        return _compile_function(part, compiler, own_shapes, own_values, example if arrays is None else arrays)

    takes = [i for i in (*known.inputs, *known.optional) if i.name not in values]
    defaults = {i.name for i in known.optional} - shapes.keys()
    required, optional = (_ports([i for i in takes if (i.name in defaults) is has], shapes) for has in (False, True))
    return StagedModel(
        required, _ports(outputs, {}), stages, build, compiler.options.num_threads, optional, halves=halves
    )


def _ports(inputs: Sequence[Input], given: Mapping[str, Sequence[int]]) -> tuple[PortType, ...]:
    dims = known_dims(inputs, given)
    return tuple(PortType(i.name, _shape(dims[i.name]), i.dtype) for i in inputs)


def _check_computed(
    function: sources.Function,
    shapes: Mapping[str, Sequence[int]],
    fixed: Mapping[str, Any],
    example: Mapping[str, Array] | None,
) -> None:
    """Raises ComputedShapes if a trial import finds computed shapes. example: the inputs of the trial; None: arrays of
    the number 1 in likely shapes."""
    if function.computes_shapes is None or not function.computes_shapes():
        return
    known = [i for i in function.signature.inputs if i.name not in fixed]
    likely = likely_shapes((i.name, i.dtype.kind, i.dims) for i in known if i.name not in shapes)
    values = {i.name: np.ones(likely.get(i.name, ()), i.dtype.numpy) for i in known if i.shape_input}
    if example is not None:
        likely = {name: example[name].shape for name in likely}
        values = {name: example[name] for name in values}
    free = {name: shape for name, shape in likely.items() if name not in values}
    try:
        function.graph({**free, **shapes}, {**fixed, **values})
    except ComputedShapes:
        raise
    except Error:  # the likely shapes may be wrong: each call reports its own error
        return


def _compile_at_once(
    function: sources.Function,
    compiler: "_Compiler",
    shapes: Mapping[str, Sequence[int]],
    values: Mapping[str, Any],
    example: Mapping[str, Array] | None = None,
    in_parts: Callable[[ComputedShapes, Mapping[str, Array]], Model | OpenModel | StagedModel] | None = None,
) -> Model | OpenModel:
    """in_parts: compiles the function in parts, for a call that finds computed shapes."""
    fixed = {k: np.asarray(v) for k, v in values.items()}
    result = None
    try:
        with collector_paused():
            graph = function.graph(shapes, fixed)
        result = compiler.build(graph)
        if not function.is_open or all(p.name in fixed or p.name in shapes for p in function.signature.optional):
            return result
    except SpecialisationNeeded:
        if not function.is_open:
            raise
        _check_computed(function, shapes, fixed, example)
    known = function.signature
    takes = [p for p in (*known.inputs, *known.optional) if p.name not in fixed]
    optional = {p.name for p in known.optional} - shapes.keys()

    pool, constants = _core.MemoryPool(), KeptConstants()
    if function.weights is not None:
        function.weights.share(pool)

    def specialise(call_shapes: Shapes, call_values: Values, whole: bool = False) -> Model:
        """whole: keep the graph, and do not share the weights."""
        free = {p.name: call_shapes[p.name] for p in takes
                if p.name in call_shapes and p.name not in call_values and (p.free or p.name in optional)}  # fmt: skip
        with collector_paused(), constants_kept(constants):
            graph = function.graph({**free, **shapes}, {**fixed, **call_values})
            model = compiler.build(graph, None if whole else pool)
        if function.weights is not None:
            function.weights.release_unshared()
        return model

    given = {**shapes, **{name: value.shape for name, value in fixed.items()}}
    dims = known_dims((*known.inputs, *known.optional), given)
    ports = {p.name: PortType(p.name, _shape(dims[p.name]), p.dtype) for p in takes}
    required, others = (tuple(p for p in ports.values() if (p.name in optional) is has) for has in (False, True))
    shape_inputs = frozenset(p.name for p in takes if p.shape_input)
    variants = OpenModel(
        required, known.outputs, shape_inputs, specialise, compiler.options.memory, others, known.results, in_parts
    )
    return variants if result is None else result.with_optional(variants)


def _shape(dims: tuple[int | str | None, ...] | None) -> tuple[int | str | None, ...]:
    """Returns the shape of a PortType. dims: None if even the rank is free."""
    return ("...",) if dims is None else dims


def compile_whole(
    network: sources.Module,
    options: Options,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, Any] | None = None,
) -> Model | OpenModel:
    """As `compile`, but in whole tensors and without the limits of `memory`: the input of planning. shapes, values: see
    input_shapes and input_values."""
    return _compile_at_once(
        network.function(), replace(_Compiler.of(options), planned=False), shapes or {}, values or {}
    )


def compile_compressed(
    model: Graph, asked: Compression, options: Options = DEFAULTS, *, surveys: bool = False
) -> tuple[Compressed, Model]:
    """Returns the encoding and measured cost of each weight, and the compiled model. surveys: measure other encodings
    too."""
    return _Compiler.of(options).compressed(model, asked, measures=True, surveys=surveys)


def host_error(graph: Graph, other: Graph, given: Sequence[Mapping[str, Any]] = ()) -> tuple[float, str]:
    """Returns the largest relative error of an output of `other` compared with `graph`, on this CPU, and a description
    of the inputs used: the given ones, or random ones."""
    feeds = Feeds(graph, given)
    whole, got = (feeds.run(_Compiler.of(DEFAULTS).build(one)) for one in (graph, other))
    return relative_error(whole, got), feeds.said


def build_with_shared_weights(
    options: Options = DEFAULTS, pool: _core.MemoryPool | None = None, *, packed_only: bool = False
) -> Callable[[Graph], Model]:
    """Returns a function that compiles graphs, or raises Error, as `compile` does. Equal weights share memory in a
    pool. packed_only: weights that kernels have packed are not kept; the models cannot be saved."""
    compiler = replace(_Compiler.of(options), packed_only=packed_only)
    pool = pool or _core.MemoryPool()
    return lambda network: compiler.build(network, pool)


def compile_with_programs(model: Graph, programs: "Sequence[_core.MadeProgram]", options: Options = DEFAULTS) -> Model:
    """Returns the compiled graph. programs: the programs of its "ane.program" ops, by the op's attribute `index`."""
    return _Compiler.of(options).build(model, programs=programs)


@dataclass(frozen=True, slots=True)
class _Compiler:
    options: Options
    target: Target
    planned: bool = True  # see `compile_graph`
    packed_only: bool = False  # see `build_with_shared_weights`

    @classmethod
    def of(cls, options: Options) -> "_Compiler":
        """Raises Error for options that contradict each other or the target."""
        if options.placed.kind == "coreml":
            raise Error("[compile] device: got 'coreml', need 'auto', 'cpu' or 'ane' here; hx.compile takes 'coreml'")
        target = target_of(options)
        options.check_for(target)
        if options.placed.kind == "ane":
            found, missing = engine.find_engine(target.name)
            if found is None:
                raise Error(
                    f"[compile] device: got 'ane', need a Neural Engine: {missing}; 'cpu' runs the same program"
                )
        return cls(options, target)

    def build(
        self, model: Graph, pool: _core.MemoryPool | None = None, programs: "Sequence[_core.MadeProgram]" = ()
    ) -> Model:
        """Returns the compiled model. With a pool, all weights are in the pool and the model keeps no graph. programs:
        those already compiled for the graph."""
        asked = self.options.compression
        if asked is None:
            with collector_paused():
                return self._build(model, pool, programs)
        return self.compressed(model, asked, pool)[1]

    def compressed(
        self,
        model: Graph,
        asked: Compression,
        pool: _core.MemoryPool | None = None,
        *,
        measures: bool = False,
        surveys: bool = False,
    ) -> tuple[Compressed, Model]:
        """Returns the graph with compressed weights, and the compiled model. measures, surveys: see the function
        `compressed`."""

        def built(graph: Graph) -> Model:
            with collector_paused():
                return self._build(graph, pool)

        def trial(graph: Graph) -> Model:
            return replace(self, options=Options(threads=self.options.threads), target=load_target("host"))._build(
                graph, None
            )

        threads = self.options.num_threads
        return compressed(model, asked, self.target, built, trial, threads=threads, measures=measures, surveys=surveys)

    def _build(
        self, model: Graph, pool: _core.MemoryPool | None, programs: "Sequence[_core.MadeProgram]" = ()
    ) -> Model:
        chosen = self._chosen(model, is_fixed=pool is None)
        if chosen is not None:
            model = model.decided(*chosen.decisions)
        segment_compiler, why = self.engine()
        known = [] if segment_compiler is None else segment_compiler.made
        known += programs
        dump = self.options.dump
        watch = None if dump is None else Dump(dump)
        program = self.program(model, segment_compiler, watch, None if chosen is None else chosen.numbers)
        callbacks = in_order(known, program) if known else []
        if pool is not None:
            self._check_call(program)
        swaps = [(program.buffers[state].space, program.buffers[after].space) for state, after in program.swaps]
        core = _core.Program(
            emit_plan(program), self.options.num_threads, pool, callbacks, swaps, packed_only=self.packed_only
        )
        device = None if segment_compiler is None else segment_compiler.device
        core.limit_callers(self.options.num_contexts)
        memory = self.options.memory
        traffic = slow_traffic(program, memory) if memory.slow_bytes else None
        return Model(core, None if pool else program, why, device, traffic)

    def _check_call(self, program: Program) -> None:
        """Raises InputError if a call of a program for open shapes needs more memory than the user allows."""
        most = self.options.memory.call_bytes
        needed = sum(extent.bytes for name, extent in program.extents.items() if name != "weights")
        graph = program.graph
        needed += sum(value.type.bytes for value in (*graph.inputs, *(port.value for port in graph.outputs)))
        if most and needed > most:
            raise InputError(
                f"[call] got shapes whose call takes {size_text(needed)}, need at most the {size_text(most)} of"
                " hx.Memory(call=)"
            )

    def engine(self) -> tuple[OnEngine | None, str]:
        """Returns the compiler for the Neural Engine, or None and the reason why the program does not run on the
        engine."""
        device = self.options.placed
        if not isinstance(self.target, Chip) or device.kind == "cpu":
            return None, ""
        if asked := self.options.on_cpu:
            return None, f"got options that need the CPU: {' and '.join(asked)}"
        found, missing = engine.find_engine(self.target.name)
        if found is None:
            return None, missing
        qos = dispatch().default_qos if device.qos is None else device.qos
        return OnEngine(found, self.target, qos, device.cache), ""

    def _chosen(self, model: Graph, *, is_fixed: bool) -> ChosenProducts | None:
        """Returns the products in bf16 if the dtype is "auto"; None for other dtypes."""
        asked = self.options.auto_dtype
        if asked is None:
            return None
        if self.options.memory.runs_on != "host":
            return in_fp32("the runtime for small devices has no bf16")
        whole = replace(self, planned=False)

        def trial(numbers: Collection[int], watch: Watch | None = None) -> Model:
            program = whole.program(model, None, watch, numbers)
            swaps = [(program.buffers[state].space, program.buffers[after].space) for state, after in program.swaps]
            return Model(_core.Program(emit_plan(program), self.options.num_threads, None, [], swaps), program)

        return choose_products(model, asked, trial, is_fixed=is_fixed)

    def program(
        self,
        model: Graph,
        segment_compiler: OnEngine | None = None,
        watch: Watch | None = None,
        in_bf16: Collection[int] | None = None,
    ) -> Program:
        if isinstance(self.target, Chip):
            return chip_program(model, self.target, self.options, watch=watch, segment_compiler=segment_compiler)
        graph = narrow_ports(model, self.target) if self.options.io == "fp16" else model
        return compile_graph(graph, self.target, self.options, watch=watch, planned=self.planned, in_bf16=in_bf16)


def target_of(options: Options) -> Target:
    """Returns the target of these options on this machine."""
    by_environment = os.environ.get("HEXANE_TARGET", "")
    own = "" if options.placed.kind == "cpu" else engine.own_chip()
    if options.target is not None and options.target != "":
        return load_target(options.target)
    return load_target(lookup_environment(by_environment).written if by_environment else own or "host")
