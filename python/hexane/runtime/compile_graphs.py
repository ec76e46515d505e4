"""Compiles single graphs for planners, trainers and reports."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hexane import _core
from hexane.compression import Compression
from hexane.graph import Graph
from hexane.options import DEFAULTS, Options
from hexane.runtime.compiler import Compiler
from hexane.runtime.compressed import Compressed, Feeds, relative_error
from hexane.runtime.model import Model


def compile_compressed(
    model: Graph, asked: Compression, options: Options = DEFAULTS, *, surveys: bool = False
) -> tuple[Compressed, Model]:
    """Returns the encoding and measured cost of each weight, and the compiled model. surveys: measure other encodings
    too."""
    return Compiler.of(options).compressed(model, asked, measures=True, surveys=surveys)


def host_error(graph: Graph, other: Graph, given: Sequence[Mapping[str, Any]] = ()) -> tuple[float, str]:
    """Returns the largest relative error of an output of `other` compared with `graph`, on this CPU, and a description
    of the inputs used: the given ones, or random ones."""
    feeds = Feeds(graph, given)
    whole, got = (feeds.run(Compiler.of(DEFAULTS).build(one)) for one in (graph, other))
    return relative_error(whole, got), feeds.said


def build_with_shared_weights(
    options: Options = DEFAULTS, pool: _core.MemoryPool | None = None, *, packed_only: bool = False
) -> Callable[[Graph], Model]:
    """Returns a function that compiles graphs, or raises Error, as `compile` does. Equal weights share memory in a
    pool. packed_only: weights that kernels have packed are not kept; the models cannot be saved."""
    compiler = replace(Compiler.of(options), packed_only=packed_only)
    pool = pool or _core.MemoryPool()
    return lambda network: compiler.build(network, pool)


def compile_with_programs(model: Graph, programs: "Sequence[_core.MadeProgram]", options: Options = DEFAULTS) -> Model:
    """Returns the compiled graph. programs: the programs of its "ane.program" ops, by the op's attribute `index`."""
    return Compiler.of(options).build(model, programs=programs)
