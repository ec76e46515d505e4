"""Compiles a model from any source."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hexane import _core, sources
from hexane.build import Tensor, graph
from hexane.compression import Compression
from hexane.dtypes import FP32
from hexane.errors import Error
from hexane.graph import Array
from hexane.importers.likely_shapes import likely_shapes
from hexane.importers.signature import ComputedShapes, Input, SpecialisationNeeded, known_dims
from hexane.lowering.kept_constants import KeptConstants, constants_kept
from hexane.memory import Memory
from hexane.options import DEFAULTS, AutoDtype, Device, Options
from hexane.runtime.collector import collector_paused
from hexane.runtime.compiler import Compiler
from hexane.runtime.coreml_model import compile_on_coreml
from hexane.runtime.model import Model, PortType
from hexane.runtime.open_model import OpenModel, Shapes, Values
from hexane.runtime.staged_model import StagedModel
from hexane.sources.module import Stages
from hexane.targets import Target


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
    compiler = None if on_coreml else Compiler.of(asked)
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
    compiler: Compiler,
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
    compiler: Compiler,
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
    compiler: Compiler,
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
        network.function(), replace(Compiler.of(options), planned=False), shapes or {}, values or {}
    )
