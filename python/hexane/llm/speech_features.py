"""Converts sounds to Whisper's spectrograms, as preprocessor_config.json defines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.graph import Array
from hexane.importers.encoders.config import short
from hexane.importers.encoders.files import json_object
from hexane.importers.speech import SpeechConfig

FILES = ("preprocessor_config.json", "processor_config.json")
KIND = "WhisperFeatureExtractor"
RATE = 16000  # Samples a second.
HIGHEST = 8000.0  # Upper end of the last filter in Hz, a constant in transformers.
LEAST, RANGE = 1e-10, 8.0  # Least power; range of log10 powers below a window's largest.
LARGEST = 1 << 20
# transformers' defaults for missing fields.
DEFAULTS: Mapping[str, Any] = {
    "feature_size": 80,
    "hop_length": 160,
    "chunk_length": 30,
    "n_fft": 400,
    "sampling_rate": RATE,
    "padding_value": 0.0,
    "padding_side": "right",
    "dither": 0.0,
    "feature_extractor_type": KIND,
}
# n_samples, nb_max_frames and mel_filters follow from other fields; transformers reads do_normalize only as an argument
# of a call.
HARMLESS = frozenset(
    (
        *("processor_class", "return_attention_mask", "n_samples", "nb_max_frames", "mel_filters", "auto_map"),
        *("do_normalize", "return_tensors", "transformers_version", "device"),
    )
)


@dataclass(frozen=True)
class SpeechFeatures:
    """Converts samples to a spectrogram: powers of `window` samples, every `hop` samples, in `mels` bands.

    length: samples of a window of sound; padding: the value that pads shorter sounds.
    """

    mels: int
    window: int
    hop: int
    length: int
    padding: float

    def __call__(self, samples: Array) -> Array:
        """Returns (mels, frames) in fp32 for at most `length` samples: (x + 4) / 4, where x is log10 of the powers,
        raised to at least its maximum minus 8."""
        sound = np.full(self.length, self.padding, np.float64)
        sound[: len(samples)] = samples
        sound = np.pad(sound, self.window // 2, mode="reflect")
        frames = np.lib.stride_tricks.sliding_window_view(sound, self.window)[:: self.hop][: self.length // self.hop]
        hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(self.window) / self.window)
        powers = np.abs(np.fft.rfft(frames * hann)) ** 2
        logs = np.log10(np.maximum(self._filters @ powers.T, LEAST))
        features: Array = (np.maximum(logs, logs.max() - RANGE) + 4.0) / 4.0
        return features.astype(np.float32)

    @cached_property
    def _filters(self) -> Array:
        """(mels, bins): triangular filters with area 1; each reaches to its neighbours' centres on Slaney's scale."""
        places = _hertz(np.linspace(0.0, _mels(HIGHEST), self.mels + 2))
        bins = np.linspace(0.0, RATE / 2, self.window // 2 + 1)
        left, middle, right = (places[i : len(places) - 2 + i, None] for i in range(3))
        rising, falling = (bins - left) / (middle - left), (right - bins) / (right - middle)
        filters: Array = np.maximum(np.minimum(rising, falling), 0) * 2 / (right - left)
        return filters


# Slaney's scale is linear up to 1000 Hz, and logarithmic above.
BEND, BEND_MELS, STEP = 1000.0, 15.0, np.log(6.4) / 27


def _mels(hertz: float) -> float:
    return 3 * hertz / 200 if hertz < BEND else BEND_MELS + float(np.log(hertz / BEND)) / STEP


def _hertz(mels: Array) -> Array:
    above = BEND * np.exp(STEP * (np.maximum(mels, BEND_MELS) - BEND_MELS))
    hertz: Array = np.where(mels < BEND_MELS, 200 * mels / 3, above)
    return hertz


def load_speech_features(folder: Path, config: SpeechConfig) -> SpeechFeatures:
    """Returns the converter of the model in a folder.

    Raises Error for a folder without the file, for unknown fields that may change the numbers, and if the spectrogram
    and the network's input differ in size.
    """
    where = f"[llm.load] {folder}"
    name = next((one for one in FILES if (folder / one).is_file()), None)
    given = None if name is None else json_object(folder, name, where)
    if given is not None and name == FILES[1]:
        given = given.get("feature_extractor")
    if not isinstance(given, dict):
        raise Error(f"{where}: got no {FILES[0]}, need it: it says how sounds become the input of the network")
    return _features(f"{where}: {name}", given, config)


def _features(where: str, given: Mapping[str, Any], config: SpeechConfig) -> SpeechFeatures:
    fields = {**DEFAULTS, **{name: one for name, one in given.items() if one is not None}}
    wrong: list[str] = []

    def bad(name: str, need: str) -> None:
        wrong.append(f"{name}: got {short(fields[name])}, need {need}")

    for name in sorted(given):
        known = name in DEFAULTS or name in HARMLESS or name.startswith("_")
        if not known and given[name] not in (None, False):
            bad(name, "no such field, as it may change the numbers")
    for name in ("feature_size", "hop_length", "chunk_length", "n_fft"):
        if isinstance(fields[name], bool) or not isinstance(fields[name], int) or not 1 <= fields[name] <= LARGEST:
            bad(name, "an integer from 1 on")
    for name in ("sampling_rate", "padding_side", "dither", "feature_extractor_type"):
        if fields[name] != DEFAULTS[name]:
            bad(name, repr(DEFAULTS[name]))
    padding = fields["padding_value"]
    if isinstance(padding, bool) or not isinstance(padding, (int, float)) or not abs(padding) <= 1:
        bad("padding_value", "a number from -1 to 1")
    if not wrong:
        length, window, hop = fields["chunk_length"] * RATE, fields["n_fft"], fields["hop_length"]
        if window % 2 or window > length:
            bad("n_fft", "an even number of samples in a window of sound")
        if fields["feature_size"] != config.mels:
            bad("feature_size", f"the {config.mels} of num_mel_bins")
        if length // hop != config.frames:
            seconds = config.frames * hop / RATE
            bad("chunk_length", f"{seconds:g}: the network takes {config.frames} frames of {hop} samples")
    if wrong:
        raise Error(f"{where}: {'; '.join(wrong)}")
    return SpeechFeatures(fields["feature_size"], window, hop, length, float(padding))
