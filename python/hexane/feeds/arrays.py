"""Reads arrays from npy and npz files."""

import os
import zipfile
import zlib
from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np

from hexane.errors import Error
from hexane.feeds.ports import Port, fitting
from hexane.graph import Array
from hexane.importers.files import check_memory, open_regular

MOST_HEADER = 1 << 16  # Most bytes of an npy file's header.
MOST_ELEMENT = 8  # Most bytes of a number in a file.
FAULTS = (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError, RuntimeError, zlib.error)


def read_npy(path: Path, where: str, need: str = "npy file") -> Array:
    """The array of an npy file, in its own dtype."""
    try:
        with os.fdopen(open_regular(path, where, need), "rb") as file:  # np.load would keep an archive's file open
            start = file.read(6)
            if start[:2] != b"PK" and start != b"\x93NUMPY":
                raise Error(f"{where} is no npy file of numbers: got the first bytes {start!r}, need those of npy")
            file.seek(0)
            array = np.load(file, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise Error(f"{where} is no npy file of numbers: {_without_advice(error)}") from None
    if not isinstance(array, np.ndarray):
        raise Error(f"{where} is an archive of arrays, need an npy file")
    return array


def read_npz(path: Path, where: str) -> dict[str, Array]:
    """The arrays of an npz file, in their own dtypes."""
    with os.fdopen(open_regular(path, where, "npz file"), "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                check_memory(where, sum(info.file_size for info in archive.infolist()))
                return {name.removesuffix(".npy"): _member(archive, name) for name in archive.namelist()}
        except FAULTS as error:
            raise Error(f"{where} is no npz file of numbers: {_without_advice(error)}") from None


def read_archive(ports: Sequence[Port], path: Path) -> dict[str, Array]:
    """The arrays of an npz file, named after all or some of the ports. Raises Error for an unknown name, and for
    an array that does not fit its port."""
    need, where = {port.name: port for port in ports}, f"[input] {path}"
    with os.fdopen(open_regular(path, where, "npz file"), "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                sizes = {info.filename.removesuffix(".npy"): info.file_size for info in archive.infolist()}
                if not sizes or sizes.keys() - need.keys():
                    raise Error(f"{where}: got the arrays {', '.join(sizes) or 'none'}, need {', '.join(need)}")
                check_memory(where, sum(sizes.values()))
                for name, size in sizes.items():  # checked before anything is unpacked
                    extents = [d for d in need[name].shape if isinstance(d, int)]
                    most = prod(extents) * max(need[name].dtype.numpy.itemsize, MOST_ELEMENT) + MOST_HEADER
                    if len(extents) == len(need[name].shape) and size > most:
                        raise Error(f"{where}: got {size} bytes for {name!r}, need {need[name]}")
                members = {name.removesuffix(".npy"): name for name in archive.namelist()}
                return {
                    name: fitting(need[name], _member(archive, member), path, f"[input] {name!r}")
                    for name, member in members.items()
                }
        except FAULTS as error:
            raise Error(f"{where} is no npz file of numbers: {_without_advice(error)}") from None


def _member(archive: zipfile.ZipFile, name: str) -> Array:
    with archive.open(name) as file:
        return np.asarray(np.lib.format.read_array(file, allow_pickle=False))


def _without_advice(error: Exception) -> str:
    """NumPy's message about a file, without its advice to allow pickles: no command loads them."""
    return "it holds Python objects, which are not loaded" if "allow_pickle" in str(error) else str(error)
