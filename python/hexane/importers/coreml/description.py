"""The inputs and outputs that a Core ML model declares: dtypes, shapes with variable extents, images, defaults."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hexane.dtypes import DTYPES, FP32, DType
from hexane.errors import Error, InputError
from hexane.graph import Value
from hexane.importers.coreml.program import Declared
from hexane.importers.signature import Dim
from hexane.ops.compose import Builder, cast

# ArrayFeatureType.ArrayDataType and ImageFeatureType.ColorSpace.
DTYPES_OF = {65552: "fp16", 65568: "fp32", 65600: "fp64", 131080: "int8", 131104: "int32"}
COLORS = {10: "grayscale", 20: "rgb", 30: "bgr", 40: "grayscale_fp16"}


@dataclass(frozen=True, slots=True)
class Feature:
    """An input or output. dims: the extents, None for a variable axis. ranges: the lowest and the highest extent of
    each axis; a highest extent of -1 is no limit. sizes: the allowed shapes, if the model lists them. usual: the
    author's default shape. color: the color space of an image, "" for a tensor; the port of an image is (height,
    width[, 3]) in the order red, green, blue, fp16 for grayscale_fp16, else uint8. default: the value of an optional
    input that is not given. leads: two axes, sequence and batch, may precede the dims."""

    name: str
    dtype: DType
    dims: tuple[int | None, ...]
    usual: tuple[int, ...] = ()
    ranges: tuple[tuple[int, int], ...] = ()
    sizes: tuple[tuple[int, ...], ...] = ()
    color: str = ""
    default: float | None = None
    doc: str = ""
    leads: bool = False

    @staticmethod
    def of(name: str, kind: Declared) -> "Feature":
        """Returns the feature of an input without a description."""
        if kind.dtype is None or kind.dims is None:
            raise Error(f"[coreml] got the input {name!r} of {kind}, need a tensor")
        return Feature(name, kind.dtype, kind.dims)

    def names(self) -> tuple[Dim, ...]:
        return tuple(None if d is None else d for d in self.dims)

    def text(self) -> str:
        """Returns the type as printed text, such as fp32[1, 3, 224..512, 224..512]."""
        dims = []
        for axis, dim in enumerate(self.dims):
            if dim is not None:
                dims.append(str(dim))
            elif axis < len(self.ranges):
                low, high = self.ranges[axis]
                dims.append(f"{low}.." if high < 0 else f"{low}..{high}")
            else:
                dims.append("|".join(map(str, sorted({size[axis] for size in self.sizes}))) or "?")
        said = f"{self.dtype}[{', '.join(dims)}]"
        said = f"image, {self.color}, {said}" if self.color else said
        return said if self.default is None else f"{said}, {self.default:g} where it is not given"

    @property
    def is_open(self) -> bool:
        return None in self.dims

    def usual_shape(self) -> tuple[int, ...] | None:
        """Returns the author's default shape if the model has variable axes and names one."""
        return self.fixed_shape() if self.is_open and self.usual else None

    def fixed_shape(self) -> tuple[int, ...]:
        return tuple(u if d is None else d for d, u in zip(self.dims, self.usual or (1,) * len(self.dims), strict=True))

    def given(self, shape: Sequence[int] | None) -> tuple[int, ...]:
        """Returns the shape, checked. Raises InputError for a shape that the model does not allow."""
        if shape is None:
            shape = self.fixed_shape()
        extents = tuple(int(d) for d in shape)
        if self.leads and len(extents) == len(self.dims) + 2:
            return (*extents[:2], *replace(self, leads=False).given(extents[2:]))
        got = "x".join(map(str, extents)) or "one number"
        need = "x".join("?" if d is None else str(d) for d in self.dims) or "one number"
        if len(extents) != len(self.dims) or any(d not in (None, e) for d, e in zip(self.dims, extents, strict=True)):
            raise InputError(f"[coreml] input {self.name!r}: got the shape {got}, need {need}")
        if self.sizes and extents not in self.sizes:
            listed = ", ".join("x".join(map(str, size)) for size in self.sizes[:8])
            raise InputError(f"[coreml] input {self.name!r}: got the shape {got}, need one of {listed}")
        for axis, (extent, (low, high)) in enumerate(zip(extents, self.ranges, strict=False)):
            if extent < low or (0 <= high < extent):
                most = "any" if high < 0 else str(high)
                raise InputError(f"[coreml] input {self.name!r}: got {extent} on axis {axis}, need {low} to {most}")
        return extents

    def read(self, b: Builder, port: Value, kind: Declared) -> Value:
        """Returns the program's value of a port. An image is converted to the channel order and layout of the program's
        tensor."""
        if not self.color:
            value = port if kind.dtype is None else cast(b, port, kind.dtype)
            if kind.dims == () and value.shape == (1,):
                return b.reshape(value, shape=())
            return value
        value = port
        if len(port.shape) == 2:
            value = b.reshape(value, shape=(1, 1, *port.shape))
        else:
            if self.color == "bgr":
                value = b.reverse(value, axes=(2,))
            value = b.expand_dims(b.transpose(value, perm=(2, 0, 1)), axes=(0,))
        return cast(b, value, kind.dtype or FP32)


def feature(described: Any, kind: Declared) -> Feature:
    """Returns the feature that a FeatureDescription describes. kind: the input's type in the program."""
    name, of = described.name, described.type
    if of.HasField("imageType"):
        return _image(name, of.imageType, described.shortDescription)
    if of.HasField("multiArrayType"):
        return _array(name, of, kind, described.shortDescription)
    for plain, dtype in (("doubleType", "fp64"), ("int64Type", "int32")):
        if of.HasField(plain):
            return Feature(name, DTYPES[dtype], (1,), (1,), doc=described.shortDescription)
    others = {"dictionaryType": "a dictionary", "stringType": "a text", "sequenceType": "a sequence"}
    what = next((noun for kind, noun in others.items() if of.HasField(kind)), "which has no type")
    raise Error(f"[coreml] got the input {name!r}, {what}, need an array, a number or an image")


def _array(name: str, of: Any, kind: Declared, doc: str) -> Feature:
    array = of.multiArrayType
    usual = tuple(int(d) for d in array.shape)
    dtype = DTYPES[DTYPES_OF[array.dataType]] if array.dataType in DTYPES_OF else kind.dtype or FP32
    sizes = tuple(dict.fromkeys((usual, *(tuple(map(int, s.shape)) for s in array.enumeratedShapes.shapes))))
    sizes = sizes if array.HasField("enumeratedShapes") else ()
    ranges = tuple((int(r.lowerBound), int(r.upperBound)) for r in array.shapeRange.sizeRanges)
    ranges = ranges if len(ranges) == len(usual) else ()
    dims: list[int | None] = list(usual)
    for axis in range(len(usual)):
        several = len({size[axis] for size in sizes if len(size) == len(usual)}) > 1
        ranged = bool(ranges) and ranges[axis][0] != ranges[axis][1]
        if several or ranged:
            dims[axis] = None
    if kind.dims is not None and len(kind.dims) == len(usual):
        # If an axis is open in the program and the description does not limit it, every extent is allowed.
        dims = [None if p is None and not sizes and not ranges else d for d, p in zip(dims, kind.dims, strict=True)]
    defaults = ("intDefaultValue", "floatDefaultValue", "doubleDefaultValue")
    given = next((float(getattr(array, d)) for d in defaults if array.HasField(d)), None)
    default = given if given is not None else 0.0 if of.isOptional else None
    return Feature(name, dtype, tuple(dims), usual, ranges, sizes, default=default if of.isOptional else None, doc=doc)


def _image(name: str, image: Any, doc: str) -> Feature:
    color = COLORS.get(image.colorSpace)
    if color is None:
        raise Error(f"[coreml] image {name!r}: got the color space {image.colorSpace}, need one of {COLORS}")
    planes: tuple[int, ...] = (3,) if color in ("rgb", "bgr") else ()
    usual = (int(image.height), int(image.width))
    sizes = tuple(dict.fromkeys((usual, *((int(s.height), int(s.width)) for s in image.enumeratedSizes.sizes))))
    sizes = sizes if image.HasField("enumeratedSizes") else ()
    ranges: tuple[tuple[int, int], ...] = ()
    if image.HasField("imageSizeRange"):
        both = (image.imageSizeRange.heightRange, image.imageSizeRange.widthRange)
        ranges = tuple((int(r.lowerBound), int(r.upperBound)) for r in both)
    dims: list[int | None] = list(usual)
    for axis in range(2):
        if len({size[axis] for size in sizes}) > 1 or (ranges and ranges[axis][0] != ranges[axis][1]):
            dims[axis] = None
    dtype = DTYPES["fp16"] if color == "grayscale_fp16" else DTYPES["uint8"]
    return Feature(
        name,
        dtype,
        (*dims, *planes),
        (*usual, *planes),
        (*ranges, *((d, d) for d in planes)) if ranges else (),
        tuple((*size, *planes) for size in sizes),
        color,
        doc=doc,
    )


def declared_text(described: Any) -> str:
    """Returns the type that a FeatureDescription declares as printed text; "" if it declares none."""
    of = described.type
    if of.HasField("multiArrayType"):
        array = of.multiArrayType
        if array.dataType not in DTYPES_OF and not array.shape:
            return ""
        if not array.shape:
            return f"{DTYPES_OF[array.dataType]} (the file gives no shape)"
        text = _array(described.name, of, Declared(None), "").text()
        return text if array.dataType in DTYPES_OF else f"{text[text.index('[') :]} (the file gives no dtype)"
    if of.HasField("dictionaryType"):
        key = "strings" if of.dictionaryType.HasField("stringKeyType") else "int64"
        return f"dictionary from {key} to fp64"
    if of.HasField("imageType"):
        return _image(described.name, of.imageType, "").text() if of.imageType.colorSpace in COLORS else "image"
    plain = {"sequenceType": "sequence", "stringType": "string", "int64Type": "int64", "doubleType": "fp64"}
    return next((name for field, name in plain.items() if of.HasField(field)), "")


def by_name(described: Sequence[Any], kinds: Mapping[str, Declared]) -> dict[str, Feature]:
    return {d.name: feature(d, kinds.get(d.name, Declared(None))) for d in described}
