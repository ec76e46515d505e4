"""What a command is given for the inputs of its model: arrays, numbers and shapes, and what follows from them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import typer

from hexane import sources
from hexane.cli.inputs import WHERE, Scaling, filled, read_archive, read_file
from hexane.cli.options import InputFile, NamedShape, NamedValue, by_name
from hexane.errors import Error
from hexane.graph import Array, Graph
from hexane.runtime import PortType


@dataclass(frozen=True, slots=True)
class Known:
    """What the command line says about a model's inputs. shapes: of inputs with free dims; values: of inputs that
    decide shapes, which become constants; arrays: of the inputs that are left. origins: where an array is from."""

    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Given:
    """--input-shape, --input and --value. loose: files without a name, which are archives or of the only input."""

    shapes: Mapping[str, tuple[int, ...]]
    files: Mapping[str, Path]
    loose: Sequence[Path]
    numbers: Mapping[str, tuple[int | float, ...]]
    scaling: Scaling

    @classmethod
    def of(
        cls,
        shapes: Iterable[NamedShape] | None,
        files: Iterable[InputFile] | None = None,
        values: Iterable[NamedValue] | None = None,
        scaling: Scaling | None = None,
    ) -> "Given":
        """Raises BadParameter for a name that is given twice."""
        items = list(files or ())
        named = {name: item.path for name, item in by_name((i for i in items if i.name), "--input").items()}
        numbers = {name: item.numbers for name, item in by_name(values or (), "--value").items()}
        if both := sorted(named.keys() & numbers.keys()):
            raise typer.BadParameter(f"--value: got the name {both[0]!r} twice, which --input has too, need it once")
        loose = [item.path for item in items if not item.name]
        extents = {name: item.shape for name, item in by_name(shapes or (), "--input-shape").items()}
        return cls(extents, named, loose, numbers, scaling or Scaling())

    @property
    def has_arrays(self) -> bool:
        return bool(self.files or self.loose or self.numbers)

    @property
    def pictures(self) -> list[Path]:
        """The png files."""
        return [path for path in (*self.files.values(), *self.loose) if path.suffix.lower() == ".png"]

    def read(self, model: sources.Module, *, every: bool = False) -> Known:
        """The inputs of a model that is not compiled yet. every: of all functions of an asset. Raises Error for an
        unknown name and for an array that does not fit."""
        if not self.has_arrays:
            return Known(dict(self.shapes))
        ports, optional, deciding = _ports_of(model, every)
        arrays, origins = self.arrays(ports, optional)
        known = {port.name: port for port in (*ports, *optional)}
        extra = {port.name for port in optional}
        opened = {n: a.shape for n, a in arrays.items() if n in extra or _is_open(known[n])}
        values = {name: arrays.pop(name) for name in deciding & arrays.keys()}
        shapes = {name: shape for name, shape in (dict(self.shapes) | opened).items() if name not in values}
        return Known(shapes, values, arrays, origins)

    def arrays(
        self, ports: Sequence[PortType], optional: Sequence[PortType] = ()
    ) -> tuple[dict[str, Array], dict[str, str]]:
        """The arrays that are given for these inputs, and where each is from. optional: may be given by name."""
        known = {p.name: replace(p, shape=self.shapes.get(p.name, p.shape)) for p in (*ports, *optional)}
        for option, names in (("--input", self.files), ("--value", self.numbers)):
            if unknown := [name for name in names if name not in known]:
                need = ", ".join(known) or "none"
                raise Error(f"{WHERE} {option}: got the name {unknown[0]!r}, need one of {need}")
        found = {name: read_file(known[name], path, self.scaling) for name, path in self.files.items()}
        found |= {name: filled(known[name], numbers) for name, numbers in self.numbers.items()}
        origins = {name: str(path) for name, path in self.files.items()} | dict.fromkeys(self.numbers, "--value")
        for path in sorted(self.loose, key=lambda path: path.suffix.lower() != ".npz"):
            if path.suffix.lower() == ".npz":
                more = read_archive(list(known.values()), path)
                if both := sorted(more.keys() & found.keys()):
                    raise Error(f"{WHERE} {path}: got {both[0]!r}, which is given already, need each input once")
            else:
                rest = [port.name for port in ports if port.name not in found]
                if len(rest) != 1:
                    need = f"NAME={path} with one of {', '.join(rest)}" if rest else "no more files"
                    raise Error(f"{WHERE} {path}: got a file without the name of an input, need {need}")
                more = {rest[0]: read_file(known[rest[0]], path, self.scaling)}
            found |= more
            origins |= dict.fromkeys(more, str(path))
        return found, origins


def read_graph(model: sources.Module, given: Given) -> tuple[Graph, Known]:
    """The graph of a model for these inputs."""
    known = given.read(model)
    return model.graph(known.shapes, known.values), known


def ports_of(graph: Graph) -> list[PortType]:
    return [PortType(str(v.node.attrs["name"]), v.shape, v.dtype) for v in graph.inputs]


def _is_open(port: PortType) -> bool:
    return any(not isinstance(d, int) for d in port.shape)


def _ports_of(model: sources.Module, every: bool) -> tuple[list[PortType], list[PortType], set[str]]:
    """The inputs of a model, those that have a default, and the names of those whose values decide shapes."""
    found = [one.signature for one in (model.functions.values() if every else [model.function()])]
    ports, optional = dict[str, PortType](), dict[str, PortType]()  # of several functions, each name once
    for one in found:
        for side, inputs in ((ports, one.inputs), (optional, one.optional)):
            for i in inputs:
                side.setdefault(i.name, PortType(i.name, ("...",) if i.dims is None else i.dims, i.dtype))
    deciding = {i.name for one in found for i in (*one.inputs, *one.optional) if i.shape_input}
    return list(ports.values()), list(optional.values()), deciding
