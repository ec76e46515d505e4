"""The inputs given to a command: arrays, numbers and shapes; and the model's inputs that they fix."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import typer

from hexane import sources
from hexane.cli.inputs import WHERE, filled, read_file
from hexane.cli.options import InputFile, NamedShape, NamedValue, by_name
from hexane.errors import Error
from hexane.feeds import Feeds, Preprocess
from hexane.feeds.arrays import read_archive
from hexane.feeds.images import SUFFIXES as IMAGES
from hexane.feeds.ports import is_open
from hexane.feeds.preprocess import parse_preprocess
from hexane.feeds.sounds import SUFFIX as SOUND
from hexane.graph import Array, Graph
from hexane.report.model_ports import ports_of_module
from hexane.runtime import PortType


@dataclass(frozen=True, slots=True)
class Known:
    """Inputs of the model. shapes: of inputs with free dims; values: of inputs that decide shapes, which become
    constants; arrays: of the other inputs; with --calibration, from the first feed. origins: the source of each
    array. feeds: of --calibration, including values."""

    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    feeds: Feeds | None = None

    def named_feeds(self) -> Iterable[tuple[str, Mapping[str, Array]]]:
        """Returns each input of --calibration with its name, or without --calibration the one input, named ""."""
        return [("", self.arrays)] if self.feeds is None else self.feeds.named()


@dataclass(frozen=True, slots=True)
class Given:
    """The parsed options --input-shape, --input, --value, --calibration and --preprocess. loose:
    files without an input's name: archives, or the file of the only input. partial: --calibration may leave inputs
    out."""

    shapes: Mapping[str, tuple[int, ...]]
    files: Mapping[str, Path]
    loose: Sequence[Path]
    numbers: Mapping[str, tuple[int | float, ...]]
    how: Preprocess
    calibration: Path | None = None
    partial: bool = True

    @classmethod
    def of(
        cls,
        shapes: Iterable[NamedShape] | None,
        files: Iterable[InputFile] | None = None,
        values: Iterable[NamedValue] | None = None,
        how: Preprocess | None = None,
        calibration: Path | None = None,
        preprocess: Iterable[str] | None = None,
        *,
        partial: bool = True,
    ) -> "Given":
        """Returns the parsed options. Raises BadParameter for a name given twice, and for --preprocess without an
        image, a sound or calibration inputs."""
        items = list(files or ())
        named = {name: item.path for name, item in by_name((i for i in items if i.name), "--input").items()}
        numbers = {name: item.numbers for name, item in by_name(values or (), "--value").items()}
        if both := sorted(named.keys() & numbers.keys()):
            raise typer.BadParameter(f"--value: got the name {both[0]!r} twice, which --input has too, need it once")
        loose = [item.path for item in items if not item.name]
        extents = {name: item.shape for name, item in by_name(shapes or (), "--input-shape").items()}
        how = parse_preprocess(preprocess) if preprocess else how or Preprocess()
        result = cls(extents, named, loose, numbers, how, calibration, partial)
        if how.given and calibration is None and not result.pictures and not result.has_sounds:
            raise typer.BadParameter("--preprocess: got no image or sound, need --calibration or --input with some")
        return result

    @property
    def has_arrays(self) -> bool:
        return bool(self.files or self.loose or self.numbers or self.calibration)

    @property
    def pictures(self) -> list[Path]:
        """The image files of --input."""
        return [path for path in (*self.files.values(), *self.loose) if path.suffix.lower() in IMAGES]

    @property
    def has_sounds(self) -> bool:
        return any(path.suffix.lower() == SOUND for path in (*self.files.values(), *self.loose))

    def read(self, model: sources.Module, *, every: bool = False) -> Known:
        """Returns the inputs of a model before it is compiled. every: include all functions of an asset. Raises Error
        for an unknown name, and for an array of the wrong shape or dtype."""
        if not self.has_arrays:
            return Known(_usual(model, self.shapes, every) | dict(self.shapes))
        ports, optional, deciding = ports_of_module(model, every=every)
        arrays, origins = self.arrays(ports, optional)
        feeds = self._feeds(ports, optional, arrays)
        if feeds is not None:
            first = next(iter(feeds), None)
            if first is None:
                raise Error(f"{WHERE} calibration {feeds.path}: got no inputs, need at least one")
            arrays, origins = first, origins | {n: str(feeds.path) for n in first if n not in arrays}
        known = {port.name: port for port in (*ports, *optional)}
        extra = {port.name for port in optional}
        opened = {n: a.shape for n, a in arrays.items() if n in extra or is_open(known[n])}
        values = {name: arrays.pop(name) for name in deciding & arrays.keys()}
        opened = _usual(model, (*self.shapes, *opened, *values), every) | opened
        shapes = {name: shape for name, shape in (dict(self.shapes) | opened).items() if name not in values}
        if feeds is not None and self.partial:  # so that one program serves all feeds
            feeds = feeds.with_shapes(shapes)
        return Known(shapes, values, arrays, origins, feeds)

    def _feeds(self, ports: Sequence[PortType], optional: Sequence[PortType], fixed: dict[str, Array]) -> Feeds | None:
        if self.calibration is None:
            return None
        feeds = Feeds(self.calibration, tuple(ports), tuple(optional), self.how, dict(fixed), self.partial)
        return feeds.with_shapes(dict(self.shapes))

    def arrays(
        self, ports: Sequence[PortType], optional: Sequence[PortType] = ()
    ) -> tuple[dict[str, Array], dict[str, str]]:
        """Returns the arrays given for these inputs, and the source of each. optional: inputs that may be given by
        name."""
        known = {p.name: replace(p, shape=self.shapes.get(p.name, p.shape)) for p in (*ports, *optional)}
        for option, names in (("--input", self.files), ("--value", self.numbers)):
            if unknown := [name for name in names if name not in known]:
                need = ", ".join(known) or "none"
                raise Error(f"{WHERE} {option}: got the name {unknown[0]!r}, need one of {need}")
        named = {name: read_file(known[name], path, self.how) for name, path in self.files.items()}
        named |= {name: filled(known[name], numbers) for name, numbers in self.numbers.items()}
        origins = {name: str(path) for name, path in self.files.items()} | dict.fromkeys(self.numbers, "--value")
        for path in sorted(self.loose, key=lambda path: path.suffix.lower() != ".npz"):
            if path.suffix.lower() == ".npz":
                more = read_archive(list(known.values()), path)
                if both := sorted(more.keys() & named.keys()):
                    raise Error(f"{WHERE} {path}: got {both[0]!r}, which is given already, need each input once")
            else:
                rest = [port.name for port in ports if port.name not in named]
                if len(rest) != 1:
                    need = f"NAME={path} with one of {', '.join(rest)}" if rest else "no more files"
                    raise Error(f"{WHERE} {path}: got a file without the name of an input, need {need}")
                more = {rest[0]: read_file(known[rest[0]], path, self.how)}
            named |= more
            origins |= dict.fromkeys(more, str(path))
        return named, origins


def _usual(model: sources.Module, given: Iterable[str], every: bool) -> dict[str, tuple[int, ...]]:
    """Returns the shapes that the model's file names for inputs with free dims, and prints a note on stderr for
    each."""
    named, shapes = set(given), dict[str, tuple[int, ...]]()
    for one in model.functions.values() if every else [model.function()]:
        shapes = one.usual_shapes(named) | shapes
    for name, shape in shapes.items():
        own = "x".join(map(str, shape))
        print(f"note: {name} is {own}, as the file says: --input-shape {name}:DIMS sets another shape", file=sys.stderr)
    return shapes


def read_graph(model: sources.Module, given: Given) -> tuple[Graph, Known]:
    """Returns the graph of a model for these inputs, and the inputs."""
    known = given.read(model)
    return model.graph(known.shapes, known.values), known
