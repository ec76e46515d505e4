"""Reads images from png and jpeg files for a port."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.feeds.ports import InputPort, Port, fits
from hexane.feeds.preprocess import Preprocess
from hexane.graph import Array
from hexane.importers.files import open_regular

SUFFIXES = (".png", ".jpg", ".jpeg")
COLOR_COUNTS = (1, 3)
CONVERTED = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr")  # modes with 8 bits


def takes_image(port: Port) -> bool:
    """True if the port has a shape of images."""
    return (len(port.shape) == 4 and (port.dtype.kind == "float" or port.dtype.name == "uint8")) or is_picture(port)


def is_picture(port: Port) -> bool:
    """True if a port takes the pixels of one image in Core ML's shape: [height, width, 3] or [height, width]."""
    shape = port.shape
    return port.dtype.name == "uint8" and (len(shape) == 2 or (len(shape) == 3 and shape[2] in COLOR_COUNTS))


def read_image(port: Port, path: Path, how: Preprocess, *, any_size: bool = False) -> Array:
    """The image for the port; a port of uint8 takes pixels unchanged. any_size: an image of another size is resized
    (bilinear), and one with other channels becomes grey or RGB. Raises Error if the image does not fit."""
    name = path.suffix.lower()[1:]
    if is_picture(port):
        planes = port.shape if len(port.shape) == 3 else (*port.shape, 1)
        whole = InputPort(port.name, (1, *planes), port.dtype)
        image = read_image(whole, path, replace(how, layout="nhwc"), any_size=any_size)
        return image.reshape(image.shape[1:] if len(port.shape) == 3 else image.shape[1:3])
    if len(port.shape) != 4 or (isinstance(port.shape[0], int) and port.shape[0] != 1):
        raise Error(f"[input] {port}: got a {name}, need a port of one image, [1, channels, height, width]")
    raw = port.dtype.name == "uint8" and not how.given
    if port.dtype.kind != "float" and not raw:
        raise Error(f"[input] {port}: got a {name}, need a floating port")
    last = _channels_last(port, how)
    pixels = _pixels(port, path, last, any_size)
    pixels = pixels if pixels.ndim == 3 else pixels[..., None]
    height, width, channels = pixels.shape
    shape = (1, height, width, channels) if last else (1, channels, height, width)
    if not fits(shape, port.shape):
        got = f"{width} x {height} {'RGB' if channels == 3 else 'grey'}"
        need = "x".join("?" if not isinstance(d, int) else str(d) for d in port.shape)
        form = "NHWC" if last else "NCHW"
        raise Error(f"[input] {port.name!r}: got the {got} image {path} (width x height), need {need} as {form}")
    image = pixels if raw else how.applied(pixels.astype(np.float32) / np.float32(how.divisor), port, channels)
    placed = image[None] if last else image.transpose(2, 0, 1)[None]
    return np.ascontiguousarray(placed).astype(port.dtype.numpy)


def _channels_last(port: Port, how: Preprocess) -> bool:
    if how.layout:
        return how.layout == "nhwc"
    return port.shape[3] in COLOR_COUNTS and port.shape[1] not in COLOR_COUNTS


def read_pixels(path: Path, where: str, grey: bool = False) -> Array:
    """All pixels of an image as uint8 (height, width, 3), or (height, width, 1) if grey, rotated according to its EXIF
    orientation. Raises Error, beginning with `where`, for a file that is no image with 8 bits."""

    def convert(image: Any) -> Any:
        from PIL import ImageOps

        image = ImageOps.exif_transpose(image)
        return image.convert("L" if grey else "RGB") if image.mode in CONVERTED else image

    pixels = _opened(path, f"{where}: {path}", convert)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def _pixels(port: Port, path: Path, last: bool, any_size: bool) -> Array:
    def convert(image: Any) -> Any:
        return _sized(image, port, last) if any_size and image.mode in CONVERTED else image

    return _opened(path, f"[input] {port.name!r}: {path}", convert)


def _opened(path: Path, where: str, convert: Callable[[Any], Any]) -> Array:
    try:
        from PIL import Image
    except ImportError:
        raise Error("[input] images need Pillow, which is not installed: pip install 'hexane[images]'") from None
    with os.fdopen(open_regular(path, where, "npy or image file"), "rb") as file:
        try:
            image = convert(Image.open(file, formats=["PNG", "JPEG"]))
            if image.mode in ("L", "RGB"):
                return np.asarray(image)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            kind = path.suffix.lower()[1:]
            raise Error(f"{where} is no {kind} file that can be read: {error}") from None
    raise Error(f"{where}: got an image of mode {image.mode}, need 8-bit grey (L) or RGB")


def _sized(image: Any, port: Port, last: bool) -> Any:
    from PIL.Image import Resampling

    channels = port.shape[3 if last else 1]
    grey = channels == 1 or (channels != 3 and image.mode in ("1", "L"))
    mode = "L" if grey else "RGB"
    image = image if image.mode == mode else image.convert(mode)
    height, width = port.shape[1:3] if last else port.shape[2:4]
    size = (width if isinstance(width, int) else image.width, height if isinstance(height, int) else image.height)
    return image if image.size == size else image.resize(size, Resampling.BILINEAR)
