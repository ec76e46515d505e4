"""Reads sounds from wav files for a port."""

import os
import struct
from pathlib import Path

import numpy as np

from hexane.errors import Error
from hexane.feeds.ports import ANY, Port
from hexane.feeds.preprocess import Preprocess
from hexane.graph import Array
from hexane.importers.files import open_regular

SUFFIX = ".wav"
INTEGERS, FLOATS, EXTENSIBLE = 1, 3, 0xFFFE  # The extensible format has its kind after the usual fields.
WIDTHS = {INTEGERS: (1, 2, 3, 4), FLOATS: (4, 8)}  # Bytes of a sample.


def takes_sound(port: Port) -> bool:
    """True if the port has a shape of samples: [.., samples] or [.., channels, samples]."""
    return 1 <= len(port.shape) <= 3 and ANY not in port.shape and port.dtype.kind == "float"


def read_sound(port: Port, path: Path, how: Preprocess) -> Array:
    """The samples from -1 to 1, at the file's own rate. A sound longer than the port is cut at its end; a shorter one
    is padded with zeros at its end. Channels are averaged if the port has one channel. Raises Error for a port or a
    file that is not for sounds."""
    where = f"[input] {port.name!r}: {path}"
    if not takes_sound(port):
        need = "a floating port of samples, [1, samples] or [1, channels, samples]"
        raise Error(f"[input] {port}: got a wav, need {need}")
    samples, _ = read_wav(path, where)
    *front, most = port.shape
    channels = front[1] if len(front) == 2 else 1
    channels = samples.shape[1] if not isinstance(channels, int) else channels
    if any(isinstance(d, int) and d != 1 for d in front[:1]) or channels not in (1, samples.shape[1]):
        raise Error(f"{where}: got {samples.shape[1]} channels of samples, need {port}")
    if channels == 1:
        samples = samples.mean(1, keepdims=True)
    samples = how.applied(samples, port, samples.shape[1])
    length = most if isinstance(most, int) else len(samples)
    padded = np.zeros((length, samples.shape[1]), np.float32)
    padded[: len(samples)] = samples[:length]
    placed = padded[:, 0] if not front else padded.T if len(front) == 1 else padded.T[None]
    return np.ascontiguousarray(placed).astype(port.dtype.numpy)


def read_wav(path: Path, where: str) -> tuple[Array, int]:
    """(samples, channels) fp32 from -1 to 1, and the samples per second. A file has integers of 8 to 32 bits, or
    floats. Raises Error, beginning with `where`, for other files."""
    with os.fdopen(open_regular(path, where, "wav file"), "rb") as file:
        data = file.read()
    try:
        form, samples = _parts(data)
        code, channels, rate = struct.unpack_from("<HHI", form)
        (bits,) = struct.unpack_from("<H", form, 14)
        if code == EXTENSIBLE:
            (code,) = struct.unpack_from("<H", form, 24)
    except (struct.error, ValueError) as error:
        raise Error(f"{where} is no wav file of PCM samples: {error}") from None
    width = (bits + 7) // 8
    if width not in WIDTHS.get(code, ()) or not channels or not rate:
        got = f"{channels} channels of kind {code} with {bits} bits at {rate} Hz"
        way = "`ffmpeg -i IN.wav -c:a pcm_s16le OUT.wav` makes one"
        raise Error(f"{where} is no wav file of PCM samples: got {got}. {way}")
    samples = samples[: len(samples) // (width * channels) * width * channels]
    levels = _integers(samples, width) if code == INTEGERS else np.frombuffer(samples, f"<f{width}")
    with np.errstate(over="ignore"):
        numbers = levels.astype(np.float32)
    if not np.isfinite(numbers).all():
        raise Error(f"{where}: got samples that are not finite, need numbers from -1 to 1")
    return numbers.reshape(-1, channels), rate


def _integers(data: bytes, width: int) -> Array:
    if width == 1:
        numbers: Array = (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / 128
    elif width == 3:
        low, middle, high = np.frombuffer(data, np.uint8).reshape(-1, 3).astype(np.int32).T
        numbers = (low << 8 | middle << 16 | high << 24) / 2**31
    else:
        numbers = np.frombuffer(data, f"<i{width}") / 2 ** (8 * width - 1)
    return numbers


def _parts(data: bytes) -> tuple[bytes, bytes]:
    """The parts `fmt ` and `data` of a wav file. In a file written to a pipe, the length of its data is too large."""
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        raise ValueError("it does not begin with RIFF and WAVE")
    form, at = None, 12
    while at + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, at)
        at += 8
        if name == b"fmt ":
            form = data[at : at + size]
        elif name == b"data" and form is not None:
            return form, data[at : at + size]
        at += size + size % 2
    raise ValueError("it ends before its format and its samples")
