"""Converts images to the input of an image encoder, as its preprocessor_config.json defines."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.feeds.images import read_pixels
from hexane.feeds.resample import resized
from hexane.graph import Array
from hexane.importers.encoders.config import LARGEST, short
from hexane.importers.encoders.files import json_object

FILES = ("preprocessor_config.json", "processor_config.json")
MOST_PIXELS = 1 << 14  # largest height or width
RESAMPLE = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers of its filters
HALF = (0.5, 0.5, 0.5)
_COMMON: Mapping[str, Any] = {
    "do_resize": True,
    "do_center_crop": False,
    "do_rescale": True,
    "do_normalize": True,
    "rescale_factor": 1 / 255,
    "size": {"height": 224, "width": 224},
    "crop_size": {"height": 224, "width": 224},
    "resample": 3,
    "image_mean": HALF,
    "image_std": HALF,
    "default_to_square": True,
}
# transformers' defaults for missing fields, by the processor's class without its suffix.
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "ViT": {**_COMMON, "resample": 2},
    "DeiT": {**_COMMON, "size": {"height": 256, "width": 256}, "do_center_crop": True},
    "CLIP": {
        **_COMMON,
        "size": {"shortest_edge": 224},
        "do_center_crop": True,
        "image_mean": (0.48145466, 0.4578275, 0.40821073),
        "image_std": (0.26862954, 0.26130258, 0.27577711),
        "default_to_square": False,
    },
    "Siglip": {**_COMMON, "default_to_square": False},
}
ENDINGS = ("ImageProcessorFast", "ImageProcessorPil", "ImageProcessor", "FeatureExtractor")
OF_FAMILY = {"vit": "ViT", "deit": "DeiT", "clip_vision_model": "CLIP", "siglip_vision_model": "Siglip"}
# Images are always converted to RGB or grey, even if do_convert_rgb is false: networks need three channels or one.
HARMLESS = frozenset(
    (
        *("image_processor_type", "feature_extractor_type", "processor_class", "do_convert_rgb", "data_format"),
        *("input_data_format", "return_tensors", "disable_grouping", "device", "auto_map", "transformers_version"),
    )
)


@dataclass(frozen=True, slots=True)
class ImageProcessor:
    """The steps from an image's pixels to a network's input, in order of the fields.

    size: (height, width) to resize to, or a length for the shorter edge, or None; mode: "bilinear" or "bicubic";
    crop: (height, width) of the kept middle, padded with zeros if the image is smaller, or None. factor: multiplies
    pixels from 0 to 255. `mean` is subtracted from the product, and the result divided by `std`.
    """

    size: tuple[int, int] | int | None
    mode: str
    crop: tuple[int, int] | None
    factor: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, image: Any, channels: int, where: str) -> Array:
        """Returns (channels, height, width) in fp32. image: the path of a png or jpeg, or an array (height, width,
        channels) of uint8, or of floats from 0 to 1. Grey arrays may have one channel, or no last axis. Raises Error
        for others."""
        pixels = _pixels(image, channels, where)
        if self.size is not None:
            pixels = resized(pixels, *self._size_of(pixels), self.mode)
        if self.crop is not None:
            pixels = _middle(pixels, *self.crop)
        scale = self.factor if pixels.dtype == np.uint8 else self.factor * 255
        mean, std = (np.asarray(one, np.float32) for one in (self.mean, self.std))
        normalised = (pixels.astype(np.float32) * np.float32(scale) - mean) / std
        return np.ascontiguousarray(normalised.transpose(2, 0, 1), np.float32)

    def _size_of(self, pixels: Array) -> tuple[int, int]:
        height, width = pixels.shape[:2]
        if not isinstance(self.size, int):
            assert self.size is not None
            return self.size
        longer = int(self.size * max(height, width) / min(height, width))
        return (longer, self.size) if width <= height else (self.size, longer)


def _pixels(image: Any, channels: int, where: str) -> Array:
    """Returns (height, width, channels) in uint8, or in fp32 from 0 to 1."""
    if isinstance(image, (str, os.PathLike)):
        return read_pixels(Path(image), where, grey=channels == 1)
    if not isinstance(image, np.ndarray):
        raise Error(f"{where}: got {type(image).__name__}, need the path of an image, or an array")
    pixels = image[..., None] if image.ndim == 2 else image
    if pixels.ndim != 3 or pixels.shape[2] not in (1, channels) or not pixels.size:
        raise Error(f"{where}: got an array of shape {image.shape}, need (height, width, {channels})")
    if pixels.dtype.kind == "f":
        pixels = pixels.astype(np.float32, copy=False)
        low, high = float(pixels.min()), float(pixels.max())
        if not (low >= 0 and high <= 1):
            raise Error(f"{where}: got floats from {low:g} to {high:g}, need 0 to 1, or pixels in uint8")
    elif pixels.dtype != np.uint8:
        raise Error(f"{where}: got an array of {image.dtype}, need uint8, or floats from 0 to 1")
    return np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], channels)))


def _middle(pixels: Array, height: int, width: int) -> Array:
    more = [max(need - has, 0) for need, has in zip((height, width), pixels.shape, strict=False)]
    if any(more):
        pixels = np.pad(pixels, [*((one // 2, (one + 1) // 2) for one in more), (0, 0)])
    top, left = (pixels.shape[0] - height) // 2, (pixels.shape[1] - width) // 2
    return pixels[top : top + height, left : left + width]


def load_image_processor(folder: Path, family: str, channels: int, side: int) -> ImageProcessor:
    """Returns the processor of an encoder's folder. channels, side: of the network's input images.

    Raises Error for a folder without a processor, and for unknown fields that may change the numbers.
    """
    where = f"[llm.load] {folder}"
    name = next((one for one in FILES if (folder / one).is_file()), None)
    given = None if name is None else json_object(folder, name, where)
    if given is not None and name == FILES[1]:
        given = given.get("image_processor")
    if not isinstance(given, dict):
        raise Error(f"{where}: got no {FILES[0]}, need it: it says how images become the input of the network")
    return _Reader(f"{where}: {name}", given, family, channels, side).processor()


class _Reader:
    """Reads the fields of a file. Errors are collected and raised together."""

    def __init__(self, where: str, given: Mapping[str, Any], family: str, channels: int, side: int) -> None:
        self.where, self.given, self.channels, self.side = where, given, channels, side
        self.wrong: list[str] = []
        self.defaults = self._defaults(OF_FAMILY[family])

    def _defaults(self, own: str) -> Mapping[str, Any]:
        name = self.given.get("image_processor_type", self.given.get("feature_extractor_type"))
        if name is None:
            return DEFAULTS[own]
        kind = next((str(name).removesuffix(end) for end in ENDINGS if str(name).endswith(end)), "")
        if kind not in DEFAULTS:
            need = " or ".join(f"{one}ImageProcessor" for one in DEFAULTS)
            self.wrong.append(f"image_processor_type: got {short(name)}, need {need}")
        return DEFAULTS.get(kind, DEFAULTS[own])

    def get(self, name: str) -> Any:
        value = self.given.get(name)
        return self.defaults[name] if value is None else value

    def bad(self, name: str, need: str) -> None:
        self.wrong.append(f"{name}: got {short(self.get(name))}, need {need}")

    def processor(self) -> ImageProcessor:
        for name in sorted(self.given):
            known = name in self.defaults or name in HARMLESS or name.startswith("_")
            if not known and self.given[name] not in (None, False):
                got = short(self.given[name])
                self.wrong.append(f"{name}: got {got}, need no such field, as it may change the numbers")
        size = self.size("size") if self.flag("do_resize") else None
        crop = self.size("crop_size") if self.flag("do_center_crop") else None
        if isinstance(crop, int):
            self.bad("crop_size", "a height and a width")
        last = crop or size
        if not self.wrong and isinstance(last, tuple) and last != (self.side, self.side):
            self.bad("crop_size" if crop else "size", f"the {self.side} x {self.side} of the network")
        mode = RESAMPLE.get(self.get("resample"), "") if isinstance(self.get("resample"), int) else ""
        if not mode:
            self.bad("resample", " or ".join(f"{number} ({name})" for number, name in RESAMPLE.items()))
        norm = self.flag("do_normalize")
        mean, std = self.numbers("image_mean"), self.numbers("image_std")
        factor = self.get("rescale_factor")
        if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor < LARGEST:
            self.bad("rescale_factor", "a number above 0")
        if not all(std):
            self.bad("image_std", "numbers other than 0")
        rescaled = self.flag("do_rescale")
        if self.wrong:
            raise Error(f"{self.where}: {'; '.join(self.wrong)}")
        return ImageProcessor(
            size,
            mode,
            None if isinstance(crop, int) else crop,
            float(factor) if rescaled else 1.0,
            mean if norm else (0.0,),
            std if norm else (1.0,),
        )

    def flag(self, name: str) -> bool:
        if not isinstance(self.get(name), bool):
            self.bad(name, "true or false")
        return self.get(name) is True

    def size(self, name: str) -> tuple[int, int] | int:
        """Returns (height, width), or the length of the shorter edge."""
        given = self.get(name)
        if isinstance(given, int):
            edge = name == "size" and self.get("default_to_square") is not True
            given = {"shortest_edge": given} if edge else {"height": given, "width": given}
        names = ("shortest_edge",) if isinstance(given, dict) and "shortest_edge" in given else ("height", "width")
        if isinstance(given, dict) and {key for key, one in given.items() if one is not None} == set(names):
            sides = [given[one] for one in names]
            if all(isinstance(one, int) and not isinstance(one, bool) and 1 <= one <= MOST_PIXELS for one in sides):
                return sides[0] if len(sides) == 1 else (sides[0], sides[1])
        self.bad(name, "a height and a width, or a shortest_edge, in pixels")
        return 1, 1

    def numbers(self, name: str) -> tuple[float, ...]:
        given = self.get(name)
        given = [given] if isinstance(given, (int, float)) else given
        whole = isinstance(given, (list, tuple)) and all(type(one) in (int, float) for one in given)
        if not whole or len(given) not in (1, self.channels) or not all(abs(one) < LARGEST for one in given):
            if self.given.get(name) is None and whole:
                return tuple(given[: self.channels])
            self.bad(name, f"{self.channels} numbers" if self.channels > 1 else "a number")
            return (1.0,)
        return tuple(map(float, given))
