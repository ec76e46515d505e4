"""Input arrays of a run: from npy and png files, or random."""

import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np

from hexane.cli.options import NamedFile
from hexane.errors import Error
from hexane.graph import Array
from hexane.importers.files import open_regular
from hexane.runtime import Model, OpenModel, PortType
from hexane.runtime.random_arrays import random_arrays

SEED = 0
MOST_HEADER = 1 << 16  # bytes of an npy file in front of its numbers


@dataclass(frozen=True, slots=True)
class Scaling:
    """How a png is scaled after its values are divided by 255: (x - mean) / std, one number or one for each channel."""

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)


def read_inputs(ports: Sequence[PortType], files: Mapping[str, NamedFile], scaling: Scaling) -> dict[str, Array]:
    """The arrays of all ports. Raises Error for a missing or unknown name and for a file that does not fit its port."""
    names = [port.name for port in ports]
    if unknown := [name for name in files if name not in names]:
        raise Error(f"[run] --input: got the name {unknown[0]!r}, need one of {', '.join(names) or 'none'}")
    if missing := [name for name in names if name not in files]:
        raise Error(f"[run] --input: got none for {', '.join(missing)}, need all inputs or none (for random ones)")
    return {port.name: _read(port, files[port.name].path, scaling) for port in ports}


def random_inputs(model: Model | OpenModel) -> dict[str, Array]:
    """Seeded: floats from the normal distribution; integers 0 or 1, which index any table of two rows."""
    if isinstance(model, OpenModel) and model.value_inputs:
        name = min(model.value_inputs)
        raise Error(f"[run] input {name!r}: its value decides shapes, need --input {name}=FILE.npy")
    return random_arrays(model.inputs, SEED)


def read_archive(ports: Sequence[PortType], path: Path) -> dict[str, Array]:
    """The arrays of all ports from an npz file. Raises Error for a missing or unknown name and an array that does not
    fit its port."""
    need = {port.name: port for port in ports}
    with os.fdopen(open_regular(path, f"[compare] --input {path}", "npz file"), "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                sizes = {info.filename.removesuffix(".npy"): info.file_size for info in archive.infolist()}
                if sizes.keys() != need.keys():
                    raise Error(
                        f"[compare] --input {path}: got the arrays {', '.join(sizes) or 'none'}, need {', '.join(need)}"
                    )
                for port in ports:  # before anything is unpacked
                    if sizes[port.name] > prod(port.shape) * port.dtype.numpy.itemsize + MOST_HEADER:  # type: ignore[arg-type]
                        raise Error(
                            f"[compare] --input {path}: got {sizes[port.name]} bytes for {port.name!r}, need {port}"
                        )
                return {port.name: _unpacked(archive, port, path) for port in ports}
        except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError, RuntimeError, zlib.error) as error:
            raise Error(f"[compare] --input {path} is no npz file of numbers: {_without_advice(error)}") from None


def _unpacked(archive: zipfile.ZipFile, port: PortType, path: Path) -> Array:
    member = next(name for name in archive.namelist() if name.removesuffix(".npy") == port.name)
    with archive.open(member) as file:
        return _fitting(port, np.lib.format.read_array(file, allow_pickle=False), path, "compare")


def _opened(port: PortType, path: Path) -> IO[bytes]:
    return os.fdopen(open_regular(path, f"[run] input {port.name!r}: {path}", "npy or png file"), "rb")


def _read(port: PortType, path: Path, scaling: Scaling) -> Array:
    return _read_png(port, path, scaling) if path.suffix.lower() == ".png" else _read_npy(port, path)


def _read_npy(port: PortType, path: Path) -> Array:
    where = f"[run] input {port.name!r}: {path}"
    try:
        with _opened(port, path) as file:  # which an archive would keep open
            start = file.read(6)
            if start[:2] != b"PK" and start != b"\x93NUMPY":
                raise Error(f"{where} is no npy file of numbers: got the first bytes {start!r}, need those of npy")
            file.seek(0)
            array = np.load(file, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise Error(f"{where} is no npy file of numbers: {_without_advice(error)}") from None
    if not isinstance(array, np.ndarray):
        raise Error(f"[run] input {port.name!r}: {path} is an archive of arrays, need an npy file")
    return _fitting(port, array, path, "run")


def _without_advice(error: Exception) -> str:
    """What NumPy says of a file, but not that pickles may be allowed: no command loads them."""
    return "it holds Python objects, which are not loaded" if "allow_pickle" in str(error) else str(error)


def _fitting(port: PortType, array: Array, path: Path, command: str) -> Array:
    """The array in the port's dtype. Raises Error where it has another one, or another shape."""
    need = port.dtype.numpy
    if array.dtype.kind == "V" and array.dtype.itemsize == need.itemsize and need.kind == "V":
        array = array.view(need)  # npy has no name for bfloat16 and its like
    if array.dtype != need or not _fits(array.shape, port.shape):
        raise Error(f"[{command}] input {port.name!r}: got {array.dtype}{list(array.shape)} from {path}, need {port}")
    return array


def _fits(shape: Sequence[int], need: Sequence[Any]) -> bool:
    if "..." in need:
        return True
    return len(shape) == len(need) and all(not isinstance(n, int) or d == n for d, n in zip(shape, need, strict=True))


def _read_png(port: PortType, path: Path, scaling: Scaling) -> Array:
    if len(port.shape) != 4 or (isinstance(port.shape[0], int) and port.shape[0] != 1):
        raise Error(f"[run] input {port}: got a png, need a port of one image, [1, channels, height, width]")
    if port.dtype.kind != "float":
        raise Error(f"[run] input {port}: got a png, need a floating port")
    pixels = _pixels(port, path)
    image = (pixels if pixels.ndim == 3 else pixels[..., None]).transpose(2, 0, 1)[None].astype(np.float32) / 255
    if not _fits(image.shape, port.shape):
        got = f"{pixels.shape[1]} x {pixels.shape[0]} {'RGB' if pixels.ndim == 3 else 'grey'}"
        need = "x".join("?" if not isinstance(d, int) else str(d) for d in port.shape)
        raise Error(f"[run] input {port.name!r}: got the {got} image {path} (width x height), need {need} as NCHW")
    mean, std = (_per_channel(port, name, getattr(scaling, name), image.shape[1]) for name in ("mean", "std"))
    return np.ascontiguousarray((image - mean) / std).astype(port.dtype.numpy)


def _pixels(port: PortType, path: Path) -> Array:
    try:
        from PIL import Image
    except ImportError:
        raise Error("[run] png files need Pillow, which is not installed: pip install 'hexane[images]'") from None
    with _opened(port, path) as file:
        try:
            image = Image.open(file, formats=["PNG"])
            if image.mode in ("L", "RGB"):
                return np.asarray(image)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise Error(f"[run] input {port.name!r}: {path} is no png file that can be read: {error}") from None
    raise Error(f"[run] input {port.name!r}: got the image {path} of mode {image.mode}, need 8-bit grey (L) or RGB")


def _per_channel(port: PortType, name: str, values: tuple[float, ...], channels: int) -> Array:
    if len(values) not in (1, channels):
        raise Error(f"[run] --{name}: got {len(values)} numbers for {port}, need 1 or {channels}")
    return np.asarray(values, np.float32).reshape(1, -1, 1, 1)
