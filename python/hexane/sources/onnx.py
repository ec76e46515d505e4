"""ONNX models: a path, the file's bytes, or a ModelProto. ONNX has no magic, so a file is ONNX if it is nothing
else."""

from collections.abc import Collection, Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from hexane import _core
from hexane.graph import Array, Graph
from hexane.importers.signature import Signature
from hexane.sources.format import Format
from hexane.sources.look import Seen
from hexane.sources.module import Function, Shapes, Values
from hexane.system.forks import at_fork

if TYPE_CHECKING:
    from hexane.importers.onnx import ReadModel
    from hexane.importers.onnx.stages import Stages as ModelStages


def _matches(seen: Seen) -> bool:
    # The class is compared by name, because importing onnx takes longer than importing all of hexane.
    return seen.is_data or type(seen.value).__name__ == "ModelProto"


MOST_KEPT = 16 << 20  # most bytes of a model that stays in memory for the next shapes


class _OnnxModel:
    """A model with open shapes is read only once if it is small, if it is in the caller's memory, or if compiled models
    hold its weights as they are in the file."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._signature: Signature | None = None
        self._kept: ReadModel | None = None
        self._pool: _core.MemoryPool | None = None
        self.reading = Lock()
        _all.add(self)

    def graph(self, shapes: Shapes, values: Values) -> Graph:
        if self._kept is None:
            with self.reading:  # one thread at a time, because each read needs the memory of the whole file
                if self._kept is None:
                    return self._read(shapes, values)
        # Another thread may have released `_kept` in between.
        kept = self._kept
        return self._read(shapes, values) if kept is None else kept.graph(shapes, values)

    def _read(self, shapes: Shapes, values: Values) -> Graph:
        from hexane.importers.onnx import ReadModel

        read = ReadModel(self._source)
        self._signature = read.described
        if read.described.specialisation or read.described.optional:
            pool = self._pool  # a local name, because another thread may release `_pool`
            if self._is_small(read):
                self._kept = read.kept()
            elif pool is not None:
                self._kept = read.kept(pool.keep)
        return read.graph(shapes, values)

    def describe(self) -> Signature:
        from hexane.importers.onnx import signature

        if self._signature is None:
            self._signature = signature(self._source)
        return self._signature

    def share(self, pool: _core.MemoryPool) -> None:
        self._pool = pool

    def release_unshared(self) -> None:
        kept, pool = self._kept, self._pool
        if kept is None or self._is_small(kept):
            return
        if pool is None or sum(one.nbytes for one in kept.large_weights() if not pool.is_shared(one)) > MOST_KEPT:
            self._kept = self._pool = None

    def _is_small(self, read: "ReadModel") -> bool:
        return read.size <= MOST_KEPT or type(self._source) is bytes

    def computes_shapes(self) -> bool:
        from hexane.importers.onnx.load import read_model
        from hexane.importers.onnx.stages import computes_shapes

        return computes_shapes(read_model(self._source))

    def stages(self, names: Collection[str]) -> "_Stages | None":
        from hexane.importers.onnx.load import read_model
        from hexane.importers.onnx.stages import split_at

        stages = split_at(read_model(self._source), names)
        return None if stages is None else _Stages(stages)

    def inlined(self) -> Function:
        from hexane.importers.onnx.inline import inlined
        from hexane.importers.onnx.load import read_model

        return _function(inlined(read_model(self._source)))


class _Stages:
    """An ONNX model in two parts, as `sources.Stages` describes."""

    def __init__(self, stages: "ModelStages") -> None:
        self._stages = stages
        self.first = _function(stages.first)
        self.cut, self.first_outputs, self.rest_inputs = stages.cut, stages.first_outputs, stages.rest_inputs

    def rest(self, cut: Mapping[str, Array]) -> Function:
        return _function(self._stages.rest(cut))


def _open(seen: Seen) -> Mapping[str, Function]:
    return {"main": _function(seen.value)}


def _function(source: Any) -> Function:
    model = _OnnxModel(source)
    return Function(
        model.graph,
        model.describe,
        is_open=True,
        weights=model,
        stages=model.stages,
        computes_shapes=model.computes_shapes,
        inlined=model.inlined,
    )


_all: "WeakSet[_OnnxModel]" = WeakSet()


def _after_fork() -> None:
    """In a child process no thread will release a lock that was held at the fork, so all locks are replaced."""
    for model in list(_all):
        model.reading = Lock()


at_fork(after_in_child=_after_fork)

ONNX = Format("onnx", "an ONNX model", _matches, _open)
