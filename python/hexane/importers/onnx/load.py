"""Reads untrusted model files."""

import os
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import onnx
from google.protobuf.message import DecodeError

from hexane.errors import Error
from hexane.importers.files import check_memory, open_regular
from hexane.importers.onnx.file_bytes import FileBytes
from hexane.importers.onnx.sparse import dense_initializers
from hexane.importers.onnx.split import MIN_MODEL, ModelParts, Tensor, split

MAX_MODEL_BYTES = (1 << 31) - 1  # protobuf's limit


class ModelFile(NamedTuple):
    """A model: the proto, which may lack the graph's nodes and initializers, the nodes, the initializers, and the
    folder of its external data."""

    proto: onnx.ModelProto
    nodes: Sequence[onnx.NodeProto]
    initializers: Callable[[], Iterable[Tensor]]
    folder: Path | None


ModelSource = str | os.PathLike[str] | bytes | onnx.ModelProto | ModelFile


def read_model(source: ModelSource) -> ModelFile:
    """Returns the model at a path, in bytes or in a proto. Raises Error for a file that is no ONNX model."""
    if isinstance(source, ModelFile):
        return source
    if isinstance(source, onnx.ModelProto):
        return _whole(source, None)
    folder = None
    where = "model"
    if isinstance(source, (bytes, bytearray, memoryview)):
        data = memoryview(bytes(source))
        parts = split(data)
    else:
        path = Path(source)
        folder, where = path.parent, str(path)
        parts, data = _read(path)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(bytes(data) if parts is None else parts.rest)
    except DecodeError:
        raise Error(
            f"[import] {where}: got {len(data)} bytes of no kind that Hexane knows, need ONNX, TFLite, Core ML, Core"
            " AI, MIL text or a netplist; or the file is damaged or cut short"
        ) from None
    if not model.HasField("graph") or not model.opset_import:
        raise Error(f"[import] {where}: got {len(data)} bytes without a graph or an opset, need an ONNX model")
    if parts is None:
        return _whole(model, folder)
    return ModelFile(model, parts.nodes, _with_sparse(lambda: parts.initializers, model, folder), folder)


def _whole(model: onnx.ModelProto, folder: Path | None) -> ModelFile:
    initializers = _with_sparse(lambda: map(Tensor, model.graph.initializer), model, folder)
    return ModelFile(model, model.graph.node, initializers, folder)


def _with_sparse(
    initializers: Callable[[], Iterable[Tensor]], model: onnx.ModelProto, folder: Path | None
) -> Callable[[], Iterable[Tensor]]:
    """Returns a function that returns all initializers. A sparse initializer becomes dense once."""
    if not model.graph.sparse_initializer:
        return initializers
    dense = cache(lambda: tuple(dense_initializers(model.graph.sparse_initializer, folder)))
    return lambda: chain(initializers(), dense())


def _read(path: Path) -> tuple[ModelParts | None, memoryview]:
    """Returns the parts of a file and its bytes. If the file is not split, the parts are None."""
    where = f"[import] {path}"
    with os.fdopen(open_regular(path, where, "ONNX file"), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if MIN_MODEL <= size <= MAX_MODEL_BYTES:
            check_memory(where, size)
            read = FileBytes(file.fileno(), size, where)
            parts = split(read.data, read)
            if parts is not None and os.fstat(file.fileno()).st_size == size:
                return parts, read.data
        data = b"" if size > MAX_MODEL_BYTES else file.read(MAX_MODEL_BYTES + 1)
    if max(size, len(data)) > MAX_MODEL_BYTES:
        raise Error(f"[import] {path}: got more than {MAX_MODEL_BYTES} bytes, need large weights as external data")
    view = memoryview(data)
    return split(view), view
