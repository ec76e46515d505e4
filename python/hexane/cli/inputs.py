"""Arrays for inputs: from files, from numbers, or random."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np

from hexane.dtypes import integers
from hexane.errors import Error
from hexane.feeds import Preprocess
from hexane.feeds.arrays import read_npy
from hexane.feeds.images import SUFFIXES, read_image
from hexane.feeds.ports import fitting
from hexane.feeds.sounds import SUFFIX, read_sound
from hexane.graph import Array
from hexane.runtime import PortType
from hexane.runtime.random_arrays import random_arrays

SEED = 0
WHERE = "[input]"  # prefix of errors
ADVICE = "numbers on random inputs are only a hint: --input or --calibration gives the model's own"


def read_file(port: PortType, path: Path, how: Preprocess) -> Array:
    """Returns a port's array from an npy, image or wav file. Raises Error for other files, or another shape or
    dtype."""
    suffix = path.suffix.lower()
    if suffix in SUFFIXES:
        return read_image(port, path, how)
    if suffix == SUFFIX:
        return read_sound(port, path, how)
    where = f"{WHERE} {port.name!r}"
    return fitting(port, read_npy(path, f"{where}: {path}", "npy or image file"), path, where)


def filled(port: PortType, numbers: Sequence[int | float]) -> Array:
    """Returns a port's array from numbers; one number fills it. Raises Error for a wrong count or range."""
    where, dtype = f"{WHERE} --value {port.name}", port.dtype.numpy
    if port.dtype.kind not in ("float", "complex") and any(n != int(n) for n in numbers if np.isfinite(n)):
        raise Error(f"{where}: got {', '.join(map(str, numbers))}, need {port.dtype}")
    if port.dtype.kind == "bool" and any(n not in (0, 1) for n in numbers):
        raise Error(f"{where}: got {', '.join(map(str, numbers))}, need true or false")
    try:
        with np.errstate(over="ignore"):
            exact = port.dtype.kind in ("int", "uint")
            array = integers([int(n) for n in numbers], dtype) if exact else np.array(numbers).astype(dtype)
    except (OverflowError, ValueError):
        raise Error(f"{where}: got {', '.join(map(str, numbers))}, need {port.dtype}") from None
    if port.dtype.kind == "float" and (np.isfinite(np.array(numbers, np.float64)) & ~np.isfinite(array)).any():
        raise Error(f"{where}: got {', '.join(map(str, numbers))}, need numbers that {port.dtype} holds")
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
    """Returns arrays for all ports: the given ones, and seeded random ones (normally distributed floats, integers 0 or
    1, which index any table of two rows). The random arrays are the same whatever arrays are given."""
    if all(port.name in given for port in ports):
        return {port.name: given[port.name] for port in ports}
    known = [replace(p, shape=given[p.name].shape) if p.name in given else p for p in ports]
    drawn = random_arrays(known, seed)
    return {port.name: given.get(port.name, drawn[port.name]) for port in ports}


def random_line(ports: Sequence[PortType], given: Mapping[str, Array], seed: int = SEED) -> str:
    """Returns a report's line about random inputs; "" if none is random."""
    rest = [port.name for port in ports if port.name not in given]
    if not rest:
        return ""
    return f"inputs: {'' if len(rest) == len(ports) else ', '.join(rest) + ' '}random, seed {seed}"
