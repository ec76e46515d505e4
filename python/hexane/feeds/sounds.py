"""Sounds from wav files, as a port takes them."""

import os
import wave
from pathlib import Path

import numpy as np

from hexane.errors import Error
from hexane.feeds.ports import ANY, Port
from hexane.feeds.preprocess import Preprocess
from hexane.graph import Array
from hexane.importers.files import open_regular

SUFFIX = ".wav"


def takes_sound(port: Port) -> bool:
    """True if samples may have this shape: [.., samples], [.., channels, samples]."""
    return 1 <= len(port.shape) <= 3 and ANY not in port.shape and port.dtype.kind == "float"


def read_sound(port: Port, path: Path, how: Preprocess) -> Array:
    """The samples from -1 to 1, in the file's own rate: the beginning, or with zeros at the end where the port has
    more. Channels are averaged where the port has one. Raises Error for a port or a file that is no sound."""
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
    made = np.zeros((length, samples.shape[1]), np.float32)
    made[: len(samples)] = samples[:length]
    placed = made[:, 0] if not front else made.T if len(front) == 1 else made.T[None]
    return np.ascontiguousarray(placed).astype(port.dtype.numpy)


def read_wav(path: Path, where: str) -> tuple[Array, int]:
    """(samples, channels) fp32 from -1 to 1, and the samples a second. Raises Error, beginning with `where`, for a file
    that is no wav file of PCM samples."""
    with os.fdopen(open_regular(path, where, "wav file"), "rb") as file:
        try:
            with wave.open(file) as sound:
                width, channels, rate = sound.getsampwidth(), sound.getnchannels(), sound.getframerate()
                data = sound.readframes(sound.getnframes())
        except (wave.Error, EOFError, ValueError) as error:
            raise Error(f"{where} is no wav file of PCM samples: {error or 'it ends too early'}") from None
    data = data[: len(data) // (width * channels) * width * channels]
    if width == 1:
        numbers = (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / 128
    elif width == 3:
        bytes_of = np.frombuffer(data, np.uint8).reshape(-1, 3).astype(np.int32)
        numbers = ((bytes_of[:, 0] << 8 | bytes_of[:, 1] << 16 | bytes_of[:, 2] << 24) / 2**31).astype(np.float32)
    else:
        numbers = (np.frombuffer(data, f"<i{width}") / 2 ** (8 * width - 1)).astype(np.float32)
    return numbers.reshape(-1, channels), rate
