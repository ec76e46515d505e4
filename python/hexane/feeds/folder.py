"""Calibration inputs: arrays that a program gives, or files that are read one at a time."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np

from hexane.errors import Error
from hexane.feeds.arrays import read_npy, read_npz
from hexane.feeds.images import SUFFIXES as IMAGES
from hexane.feeds.images import read_image, takes_image
from hexane.feeds.ports import ANY, InputPort, Port, converted, fits
from hexane.feeds.preprocess import Preprocess
from hexane.feeds.sounds import SUFFIX as SOUND
from hexane.feeds.sounds import read_sound, takes_sound
from hexane.graph import Array

ARRAYS = (".npz", ".npy")
SUFFIXES = (*ARRAYS, *IMAGES, SOUND)


def check_feeds(
    feeds: Iterable[Mapping[str, Any]], ports: Sequence[Port], optional: Sequence[Port] = ()
) -> list[dict[str, Array]]:
    """The feeds as arrays. Raises Error for names, dtypes and shapes that the model does not have."""
    result = []
    for index, feed in enumerate(feeds):
        where = f"[quantize] calibration input {index}"
        _check_names(feed, ports, optional, where)
        arrays = {name: np.asarray(array) for name, array in feed.items()}
        for port in (*ports, *optional):
            if port.name in arrays:
                _check_array(port, arrays[port.name], where)
        result.append(arrays)
    return result


@dataclass(frozen=True, slots=True)
class Feeds:
    """The inputs in files: one file, or the files of a folder in the order of their names. An npz file has an array for
    each input, under its name. An npy file, an image (png, jpg) or a sound (wav) is used for the input that takes files
    of this kind. An array holds several inputs if it has an additional first axis, or if its first axis is longer than
    1 and the model's is 1. Images are resized to the port. optional: inputs that only an npz file can give. fixed:
    arrays of other inputs, equal in all feeds. partial: whether inputs may be missing."""

    path: Path
    ports: tuple[Port, ...]
    optional: tuple[Port, ...] = ()
    how: Preprocess = field(default_factory=Preprocess)
    fixed: Mapping[str, Array] = field(default_factory=dict)
    partial: bool = False

    def __post_init__(self) -> None:
        files = self.files  # raises Error
        if self.how.given and all(path.suffix.lower() in ARRAYS for path in files):
            raise Error(f"{self._where(self.path)}: got --preprocess for arrays, need images or sounds")

    @property
    def files(self) -> list[Path]:
        if not self.path.is_dir():
            return [self.path]
        result = sorted(p for p in self.path.iterdir() if p.suffix.lower() in SUFFIXES and not p.name.startswith("."))
        if not result:
            known = ", ".join(SUFFIXES)
            raise Error(f"{self._where(self.path)}: got a folder without {known} files, need at least one")
        return result

    def __iter__(self) -> Iterator[dict[str, Array]]:
        for _, feed in self.named():
            yield feed

    def named(self) -> Iterator[tuple[str, dict[str, Array]]]:
        """Each feed with the name of its file, and with its number if the file has several."""
        for path in self.files:
            where = self._where(path)
            arrays = self._arrays(path, where)
            if both := sorted(arrays.keys() & self.fixed.keys()):
                raise Error(f"{where}: got {both[0]!r}, which --input or --value gives, need each input once")
            given = [] if self.partial else self.fixed
            _check_names({**arrays, **dict.fromkeys(given)}, self.ports, self.optional, where, partial=self.partial)
            ports = {port.name: port for port in (*self.ports, *self.optional)}
            several = _count_all(arrays, ports, where)
            for index, feed in enumerate(_split(arrays, ports, several)):
                place = f"{where}, input {index}"
                files = {name: _file_array(ports[name], array, place) for name, array in feed.items()}
                yield path.name if several is None else f"{path.name}, input {index}", {**self.fixed, **files}

    def with_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> "Feeds":
        """These feeds for a model whose free dims have these sizes."""

        def closed(ports: Sequence[Port]) -> tuple[Port, ...]:
            return tuple(InputPort(p.name, shapes.get(p.name, p.shape), p.dtype) for p in ports)

        return replace(self, ports=closed(self.ports), optional=closed(self.optional))

    def _arrays(self, path: Path, where: str) -> dict[str, Array]:
        suffix = path.suffix.lower()
        if suffix in IMAGES:
            port = self._port_for(path, takes_image)
            return {port.name: read_image(port, path, self.how, any_size=True)}
        if suffix == SOUND:
            port = self._port_for(path, takes_sound)
            return {port.name: read_sound(port, path, self.how)}
        if suffix == ".npy":
            return {self._port_for(path, lambda port: True).name: read_npy(path, where)}
        if suffix != ".npz" and path.is_file() and not is_zipfile(path):
            raise Error(f"{where}: got a file of no known kind, need one that ends in {', '.join(SUFFIXES)}")
        return read_npz(path, where)

    def _port_for(self, path: Path, takes: Any) -> Port:
        """The input that the file is for: the only input without a fixed array, or the only such input that takes files
        of this kind."""
        rest = [port for port in self.ports if port.name not in self.fixed]
        fit = [port for port in rest if takes(port)]
        if len(rest) == 1 or len(fit) == 1:
            return (fit or rest)[0]
        names = ", ".join(port.name for port in fit or rest) or "no input"
        raise Error(
            f"{self._where(path)}: got a file that may be of {names}, need .npz files with an array for each, or"
            " --input NAME=F for all but one"
        )

    def _where(self, path: Path) -> str:
        return f"[input] calibration {path}"


def _check_names(
    arrays: Mapping[str, Any], ports: Sequence[Port], optional: Sequence[Port], where: str, *, partial: bool = False
) -> None:
    need = [port.name for port in ports]
    known = {*need, *(port.name for port in optional)}
    if not arrays or not arrays.keys() <= known or not (partial or set(need) <= arrays.keys()):
        raise Error(f"{where}: got the arrays {', '.join(arrays) or 'none'}, need {', '.join(need)}")


def _count_all(arrays: Mapping[str, Array], ports: Mapping[str, Port], where: str) -> int | None:
    """How many inputs the arrays hold; None if they are a single input without an additional axis."""
    counts = {name: _count(array, ports[name]) for name, array in arrays.items()}
    number = max((n for n in counts.values() if n is not None), default=None)
    if number is not None and (wrong := [name for name, n in counts.items() if n != number]):
        got = counts[wrong[0]] or 1
        raise Error(f"{where}: got {got} of input {wrong[0]!r}, need {number} as of the others")
    return number


def _split(arrays: Mapping[str, Array], ports: Mapping[str, Port], number: int | None) -> Iterator[dict[str, Array]]:
    if number is None:
        yield dict(arrays)
        return
    for index in range(number):
        yield {n: a[index] if a.ndim > len(ports[n].shape) else a[index : index + 1] for n, a in arrays.items()}


def _count(array: Array, port: Port) -> int | None:
    """How many inputs the array holds; None if it is a single one."""
    if ANY in port.shape:
        return None
    if array.ndim == len(port.shape) + 1:
        return len(array)
    alike = array.ndim == len(port.shape) and port.shape and port.shape[0] == 1
    return len(array) if alike and len(array) != 1 else None


def _file_array(port: Port, array: Array, where: str) -> Array:
    result = converted(array, port.dtype)
    _check_array(port, array if result is None else result, where)
    assert result is not None
    return result


def _check_array(port: Port, array: Array, where: str) -> None:
    need = np.dtype(port.dtype.numpy)
    if array.dtype != need or not fits(array.shape, port.shape):
        dims = " of any shape" if ANY in port.shape else f"[{', '.join(map(_dim, port.shape))}]"
        raise Error(f"{where}: got {array.dtype}{list(array.shape)} for {port.name!r}, need {need}{dims}")


def _dim(dim: int | str | None) -> str:
    return "?" if dim is None else str(dim)
