"""Input arrays: from npy, npz and png files, from numbers, or random."""

import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np

from hexane.errors import Error
from hexane.graph import Array
from hexane.importers.files import check_memory, open_regular
from hexane.runtime import PortType
from hexane.runtime.random_arrays import random_arrays

SEED = 0
WHERE = "[input]"  # what an error begins with
MOST_HEADER = 1 << 16  # bytes of an npy file in front of its numbers


@dataclass(frozen=True, slots=True)
class Scaling:
    """How a png is scaled after its values are divided by 255: (x - mean) / std, one number or one for each channel."""

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)


def read_file(port: PortType, path: Path, scaling: Scaling) -> Array:
    """The array of a port from an npy or png file. Raises Error for another file, and for one that does not fit."""
    return _read_png(port, path, scaling) if path.suffix.lower() == ".png" else _read_npy(port, path)


def read_archive(ports: Sequence[PortType], path: Path) -> dict[str, Array]:
    """The arrays of an npz file, whose names are those of ports, of all or of some. Raises Error for an unknown name
    and an array that does not fit its port."""
    need, where = {port.name: port for port in ports}, f"{WHERE} {path}"
    with os.fdopen(open_regular(path, where, "npz file"), "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                sizes = {info.filename.removesuffix(".npy"): info.file_size for info in archive.infolist()}
                if not sizes or sizes.keys() - need.keys():
                    raise Error(f"{where}: got the arrays {', '.join(sizes) or 'none'}, need {', '.join(need)}")
                check_memory(where, sum(sizes.values()))
                for name, size in sizes.items():  # before anything is unpacked
                    extents = [d for d in need[name].shape if isinstance(d, int)]
                    most = prod(extents) * need[name].dtype.numpy.itemsize + MOST_HEADER
                    if len(extents) == len(need[name].shape) and size > most:
                        raise Error(f"{where}: got {size} bytes for {name!r}, need {need[name]}")
                return {name: _unpacked(archive, need[name], path) for name in sizes}
        except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError, RuntimeError, zlib.error) as error:
            raise Error(f"{where} is no npz file of numbers: {_without_advice(error)}") from None


def filled(port: PortType, numbers: Sequence[int | float]) -> Array:
    """The array of a port that consists of these numbers; one number fills it. Raises Error where they do not fit."""
    where, dtype = f"{WHERE} --value {port.name}", port.dtype.numpy
    if port.dtype.kind not in ("float", "complex") and any(n != int(n) for n in numbers if np.isfinite(n)):
        raise Error(f"{where}: got {', '.join(map(str, numbers))}, need {port.dtype}")
    if port.dtype.kind == "bool" and any(n not in (0, 1) for n in numbers):
        raise Error(f"{where}: got {', '.join(map(str, numbers))}, need true or false")
    try:
        array = np.array([n if port.dtype.kind == "float" else int(n) for n in numbers]).astype(object).astype(dtype)
    except (OverflowError, ValueError):
        raise Error(f"{where}: got {', '.join(map(str, numbers))}, need {port.dtype}") from None
    extents = [d for d in port.shape if isinstance(d, int)]
    if len(extents) == len(port.shape):
        if len(numbers) not in (1, prod(extents)):
            raise Error(f"{where}: got {len(numbers)} numbers, need 1 or {prod(extents)} for {port}")
        return np.broadcast_to(array, prod(extents)).reshape(extents).copy()
    if "..." in port.shape:
        return array if len(numbers) > 1 else array.reshape(())
    if len(port.shape) != 1:
        raise Error(f"{where}: got {port}, need its shape as well: --input-shape {port.name}:DIMS")
    return array


def with_random(ports: Sequence[PortType], given: Mapping[str, Array], seed: int = SEED) -> dict[str, Array]:
    """The given arrays of these ports, and seeded random ones for the others: floats from the normal distribution;
    integers 0 or 1, which index any table of two rows. Which inputs are given does not change the others."""
    if all(port.name in given for port in ports):
        return {port.name: given[port.name] for port in ports}
    known = [replace(p, shape=given[p.name].shape) if p.name in given else p for p in ports]
    drawn = random_arrays(known, seed)
    return {port.name: given.get(port.name, drawn[port.name]) for port in ports}


def random_line(ports: Sequence[PortType], given: Mapping[str, Array], seed: int = SEED) -> str:
    """What a report says of random inputs; "" where there are none."""
    rest = [port.name for port in ports if port.name not in given]
    if not rest:
        return ""
    return f"inputs: {'' if len(rest) == len(ports) else ', '.join(rest) + ' '}random, seed {seed}"


def _unpacked(archive: zipfile.ZipFile, port: PortType, path: Path) -> Array:
    member = next(name for name in archive.namelist() if name.removesuffix(".npy") == port.name)
    with archive.open(member) as file:
        return _fitting(port, np.lib.format.read_array(file, allow_pickle=False), path)


def _opened(port: PortType, path: Path) -> IO[bytes]:
    return os.fdopen(open_regular(path, f"[input] {port.name!r}: {path}", "npy or png file"), "rb")


def _read_npy(port: PortType, path: Path) -> Array:
    where = f"[input] {port.name!r}: {path}"
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
        raise Error(f"[input] {port.name!r}: {path} is an archive of arrays, need an npy file")
    return _fitting(port, array, path)


def _without_advice(error: Exception) -> str:
    """What NumPy says of a file, but not that pickles may be allowed: no command loads them."""
    return "it holds Python objects, which are not loaded" if "allow_pickle" in str(error) else str(error)


def _fitting(port: PortType, array: Array, path: Path) -> Array:
    """The array in the port's dtype. Raises Error where it has another one, or another shape."""
    need = port.dtype.numpy
    if array.dtype.kind == "V" and array.dtype.itemsize == need.itemsize and need.kind == "V":
        array = array.view(need)  # npy has no name for bfloat16 and its like
    if array.dtype != need or not _fits(array.shape, port.shape):
        raise Error(f"{WHERE} {port.name!r}: got {array.dtype}{list(array.shape)} from {path}, need {port}")
    return array


def _fits(shape: Sequence[int], need: Sequence[Any]) -> bool:
    if "..." in need:
        return True
    return len(shape) == len(need) and all(not isinstance(n, int) or d == n for d, n in zip(shape, need, strict=True))


def _read_png(port: PortType, path: Path, scaling: Scaling) -> Array:
    if len(port.shape) != 4 or (isinstance(port.shape[0], int) and port.shape[0] != 1):
        raise Error(f"[input] {port}: got a png, need a port of one image, [1, channels, height, width]")
    if port.dtype.kind != "float":
        raise Error(f"[input] {port}: got a png, need a floating port")
    pixels = _pixels(port, path)
    image = (pixels if pixels.ndim == 3 else pixels[..., None]).transpose(2, 0, 1)[None].astype(np.float32) / 255
    if not _fits(image.shape, port.shape):
        got = f"{pixels.shape[1]} x {pixels.shape[0]} {'RGB' if pixels.ndim == 3 else 'grey'}"
        need = "x".join("?" if not isinstance(d, int) else str(d) for d in port.shape)
        raise Error(f"[input] {port.name!r}: got the {got} image {path} (width x height), need {need} as NCHW")
    mean, std = (_per_channel(port, name, getattr(scaling, name), image.shape[1]) for name in ("mean", "std"))
    return np.ascontiguousarray((image - mean) / std).astype(port.dtype.numpy)


def _pixels(port: PortType, path: Path) -> Array:
    try:
        from PIL import Image
    except ImportError:
        raise Error("[input] png files need Pillow, which is not installed: pip install 'hexane[images]'") from None
    with _opened(port, path) as file:
        try:
            image = Image.open(file, formats=["PNG"])
            if image.mode in ("L", "RGB"):
                return np.asarray(image)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise Error(f"[input] {port.name!r}: {path} is no png file that can be read: {error}") from None
    raise Error(f"[input] {port.name!r}: got the image {path} of mode {image.mode}, need 8-bit grey (L) or RGB")


def _per_channel(port: PortType, name: str, values: tuple[float, ...], channels: int) -> Array:
    if len(values) not in (1, channels):
        raise Error(f"{WHERE} --{name}: got {len(values)} numbers for {port}, need 1 or {channels}")
    return np.asarray(values, np.float32).reshape(1, -1, 1, 1)
