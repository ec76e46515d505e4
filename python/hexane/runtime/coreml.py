"""Writes networks as Core ML packages: `hx.save_coreml`."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hexane import sources
from hexane.compression import Compression, as_compression
from hexane.compression.compress import compress
from hexane.errors import Error
from hexane.graph import Graph
from hexane.targets import Chip, load_target
from hexane.targets.query import load_chip


@dataclass(frozen=True, slots=True)
class SavedPackage:
    """A written package. bytes: the size of its files. system: the number of the oldest iOS that loads it. renamed: new
    names of ports whose names Core ML refuses. functions: the graph of each function, as written."""

    path: str
    bytes: int
    system: int
    renamed: Mapping[str, str]
    functions: Mapping[str, Graph] = field(repr=False)


def save_coreml(
    model: Any,
    path: str | os.PathLike[str],
    *,
    compute: Literal["fp16", "fp32"] = "fp16",
    target: str | Chip | None = None,
    opset: str | None = None,
    compression: str | Compression | None = None,
    images: Mapping[str, str] | None = None,
    labels: Sequence[str] = (),
    listed: Sequence[Any] = (),
) -> SavedPackage:
    """Writes a network as a Core ML package (`NAME.mlpackage`) for Xcode.

        hx.save_coreml(hx.from_torch(module, (x,)), "Net.mlpackage")

    model: a graph, or anything that `hx.compile` opens. A mapping of names to models writes several functions, which
    share equal weights. compute: fp32 keeps the floats of the model. target: a chip, for whose engine ops are chosen.
    opset: iOS15 to iOS18; by default the oldest system that has all ops. compression: weights in fewer bits. images:
    inputs that are images, as {"x": "rgb,scale=1/255,bias=-0.5:-0.5:-0.5"}: colors are rgb, bgr or gray; pixels from 0
    to 255 are multiplied by scale, then bias is added: one number, or one per channel. labels: the names of the
    classes; they belong to the output that has as many numbers, in its order. listed: the same network for other shapes
    of one input, as graphs or models; the package then accepts these shapes too, and the first one is the default.

    Raises Error for ops that Core ML does not have (one error lists all), for a target with fp32, and for a path that
    does not end in .mlpackage.
    """
    from hexane.emit.coreml.images import parse_image
    from hexane.emit.coreml.package import save_model, system_of, write_model

    if os.path.splitext(os.fspath(path))[1].lower() != ".mlpackage":
        raise Error(f"[emit] got the path {os.fspath(path)!r}, need one that ends in .mlpackage")
    if compute not in ("fp16", "fp32"):
        raise Error(f"[emit] compute: got {compute!r}, need fp16 or fp32")
    if target is not None and compute == "fp32":
        raise Error("[emit] compute: got fp32 with a chip, whose engine computes in fp16, need fp16 or no chip")
    chip = load_chip(target) if isinstance(target, str) else target
    given = model if isinstance(model, Mapping) else {"main": model}
    graphs = {name: _lowered(_graph(one), chip, compression) for name, one in given.items()}
    others = [_lowered(_graph(one), chip, compression) for one in listed]
    masks = compression is not None and "sparse" in as_compression(compression).mode
    parsed = {name: parse_image(text) for name, text in (images or {}).items()}
    system = None if opset is None else system_of(opset)
    written = write_model(
        graphs, compute=compute, system=system, masks=masks, images=parsed, labels=labels, listed=others
    )
    return SavedPackage(os.fspath(path), save_model(written, path), written.system, written.renamed, written.graphs)


def _graph(model: Any) -> Graph:
    return model if isinstance(model, Graph) else sources.open_network(model, where="emit").graph()


def _lowered(graph: Graph, chip: Chip | None, compression: str | Compression | None) -> Graph:
    if compression is not None:
        asked = as_compression(compression)
        if asked.searches:
            raise Error(f"[emit] compression: got {compression}, need an encoding that is not searched for")
        graph = compress(graph, asked, chip or load_target("host"))
    if chip is None:
        return graph
    from hexane.emit.coreai.prepare import for_engine

    return for_engine(graph, chip)
