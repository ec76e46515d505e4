"""Options of several commands, and their forms NAME=FILE, NAME=NUMBER and NAME:1x3x224x224."""

import re
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar
from zipfile import is_zipfile

import typer

from hexane.feeds.folder import SUFFIXES
from hexane.targets.devices import identifiers

_FORMATS = "ONNX, TFLite (.tflite), Core ML (.mlpackage, .mlmodel), Core AI (.aimodel), MIL text (.mil) or a netplist"
ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help=f"A network: {_FORMATS}.")]
ModelOrPlan = Annotated[Path, typer.Argument(metavar="MODEL", help=f"A plan (.hxp), or a network: {_FORMATS}.")]


class InputFile(NamedTuple):
    """--input NAME=F.npy. name: "" for an archive, and for the file of the only input."""

    name: str
    path: Path


class NamedValue(NamedTuple):
    """--value NAME=1,2,3."""

    name: str
    numbers: tuple[int | float, ...]


class NamedShape(NamedTuple):
    """--input-shape NAME:1x3x224x224."""

    name: str
    shape: tuple[int, ...]


class Precision(str, Enum):
    """--dtype: of the tensors between inputs and outputs. fp32: the model's own dtypes; bf16: the same, with products
    in bf16; int8: the same, with integer products where weights are in int8; auto: bf16 only for products that get
    faster and keep the outputs within a tolerance."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"
    AUTO = "auto"


class Fallback(str, Enum):
    """--fallback: what happens with ops that a chip does not run."""

    HOST = "host"
    ERROR = "error"


class Repair(str, Enum):
    """--repair: whether computations that would overflow fp16 on a chip are rewritten."""

    ON = "on"
    OFF = "off"


class Numerics(str, Enum):
    """--numerics: in which arithmetic a program is computed: engine and ieee for chips, q31 for quantised ops as in
    TFLite."""

    ENGINE = "engine"
    IEEE = "ieee"
    Q31 = "q31"


class Strategy(str, Enum):
    """--strategy: how to meet the memory limit if whole tensors do not fit."""

    STREAM = "stream"
    STAGES = "stages"


class Runtime(str, Enum):
    """--runtime: the runtime of a plan: this machine's kernels, or the C99 runtime for microcontrollers, with or
    without CMSIS-NN."""

    HOST = "host"
    C99 = "c99"
    CMSIS_NN = "cmsis-nn"


def input_file(text: str) -> InputFile:
    name, equals, path = text.partition("=")
    if not equals or Path(text).exists():
        name, path = "", text
    elif not (name and path):
        raise typer.BadParameter(f"got {text!r}, need NAME=F.npy, or F.npz with an array for each name")
    suffix = Path(path).suffix.lower()
    if suffix not in (".npy", ".npz", ".png", ".jpg", ".jpeg", ".wav"):
        raise typer.BadParameter(f"got the file {path!r}, need one that ends in .npy, .npz, .png, .jpg or .wav")
    if name and suffix == ".npz":
        raise typer.BadParameter(f"got the name {name!r} with an archive, need {path} alone: its arrays have names")
    return InputFile(name, Path(path))


def named_value(text: str) -> NamedValue:
    name, equals, values = text.rpartition("=")  # a name may contain "="
    try:
        numbers = tuple(map(_number, values.split(",")))
    except ValueError:
        numbers = ()
    if not (name and equals and numbers):
        raise typer.BadParameter(f"got {text!r}, need NAME=NUMBER or NAME=NUMBER,NUMBER,..., for example scale=0.5")
    return NamedValue(name, numbers)


def _number(text: str) -> int | float:
    words = {"true": 1, "false": 0}
    text = text.strip().lower()
    try:
        return words[text] if text in words else int(text)
    except ValueError:
        return float(text)


def named_shape(text: str) -> NamedShape:
    name, colon, dims = text.rpartition(":")  # a name may contain ":"
    if not (name and colon and re.fullmatch(r"(\d{1,15}(x\d{1,15})*)?", dims, re.ASCII)):
        raise typer.BadParameter(f"got {text!r}, need NAME:DIMS, for example image:1x3x224x224")
    return NamedShape(name, tuple(map(int, dims.split("x"))) if dims else ())


class NamedShapes(NamedTuple):
    """--input-shape NAME:1x3x224x224,1x3x320x320."""

    name: str
    shapes: tuple[tuple[int, ...], ...]


def named_shapes(text: str) -> NamedShapes:
    name, _, listed = text.rpartition(":")
    shapes = [named_shape(f"{name}:{dims}") for dims in listed.split(",")]
    return NamedShapes(name, tuple(one.shape for one in shapes))


def numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"got {text!r}, need a number, or one for each channel, as in 0.5,0.5,0.4") from None


Item = TypeVar("Item", InputFile, NamedShape, NamedValue)


def by_name(items: Iterable[Item], option: str) -> dict[str, Item]:
    """Returns the items by name. Raises BadParameter for a name given twice."""
    named: dict[str, Item] = {}
    for item in items:
        if item.name in named:
            raise typer.BadParameter(f"{option}: got the name {item.name!r} twice, need it once")
        named[item.name] = item
    return named


def names_of(text: str) -> list[str]:
    """Returns the names in a list separated by commas. Commas in parentheses and in identifiers belong to a name:
    "MacBook Air (M2, 2022)", "iPhone13,2"."""
    names: list[str] = []
    for part in map(str.strip, re.split(r",(?![^(]*\))", text)):
        if names and part.isdecimal() and (joined := f"{names[-1]},{part}").casefold() in _identifiers():
            names[-1] = joined
        elif part:
            names.append(part)
    return names


def _identifiers() -> set[str]:
    return {name.casefold() for name in identifiers()}


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Repairs = Annotated[
    Repair,
    typer.Option(
        "--repair", help="on: rewrite ops whose values would exceed the range of fp16 on a chip; off: keep all ops."
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Target = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=(
            "What to compile for: host, or a chip or a device with it (A14, M1, iPhone 12, h13), whose program this CPU"
            " then runs in the chip's arithmetic."
        ),
    ),
]
Arithmetic = Annotated[
    Numerics | None,
    typer.Option(
        help=(
            "For a chip: engine, the chip's arithmetic as far as it is known, or ieee, fp32 rounded to fp16 after each"
            " layer [default: engine]. For the host: q31, quantised ops as in TFLite [default: as in ONNX]"
        ),
        show_default=False,
    ),
]
RunsOn = Annotated[
    Runtime | None,
    typer.Option(
        help=(
            "The runtime of the plan. host: this machine; scratch of its kernels counts against --sram. c99: a small"
            " device; inputs and outputs count, unless they are streamed. cmsis-nn: the same with the kernels of"
            " CMSIS-NN; their scratch counts. [default: host; with --flash, c99]"
        ),
        show_default=False,
    ),
]
Dtype = Annotated[
    Precision | None,
    typer.Option(
        help="fp16: store tensors in fp16, accumulate in fp32. bf16: multiply in bf16, accumulate in fp32. int8:"
        " products with weights in int8 (hexane compress --mode int8) round their input to int8 and add integers. auto:"
        " bf16 for products that are"
        " measured to be faster in it on this CPU, while outputs stay within --tolerance."
        " [default: the model's]"
    ),
]
Tolerance = Annotated[
    float | None,
    typer.Option(
        metavar="E",
        help="With --dtype auto: the largest relative error (L2) of an output against fp32. [default: 0.01]",
        show_default=False,
    ),
]
Function = Annotated[
    str | None,
    typer.Option("--function", metavar="NAME", help="The function to use, of a model with several."),
]
InputShapes = Annotated[
    list[NamedShape] | None,
    typer.Option(
        parser=named_shape, metavar="NAME:1x3x224x224", help="The shape of an input with free dims. Repeatable."
    ),
]
ListedShapes = Annotated[
    list[NamedShapes] | None,
    typer.Option(
        "--input-shape",
        parser=named_shapes,
        metavar="NAME:1x3x224x224",
        help="The shape of an input with free dims. Repeatable. For a package: several shapes, separated by commas.",
    ),
]
Inputs = Annotated[
    list[InputFile] | None,
    typer.Option(
        "--input",
        parser=input_file,
        metavar="NAME=F.npy|F.npz",
        help=(
            "An input from a file: NAME=F.npy, or .png, .jpg, .wav; an archive F.npz with arrays by name, or F.npy"
            " alone where there is one input. Free dims get the shape of the array. Repeatable. [default: random"
            " numbers; quantize needs every input]"
        ),
    ),
]
Values = Annotated[
    list[NamedValue] | None,
    typer.Option(
        "--value",
        parser=named_value,
        metavar="NAME=V",
        help="Numbers for an input: V fills the whole input, V,V,... are its elements. Repeatable.",
    ),
]


def calibration_files(text: str) -> Path:
    path = Path(text)
    is_named = bool(path.suffix) or path.is_file()  # else the name of a missing folder
    if is_named and not path.is_dir() and path.suffix.lower() not in SUFFIXES and not is_zipfile(path):
        raise typer.BadParameter(f"got the file {text!r}, need one that ends in {', '.join(SUFFIXES)}, or a folder")
    return path


CalibrationFiles = Annotated[
    Path | None,
    typer.Option(
        "--calibration",
        parser=calibration_files,
        metavar="DIR|FILE",
        help=(
            "Typical inputs of the model: a folder of images (png, jpg), wav files, .npy or .npz, or one such file."
            " Images are resized to the model's input."
        ),
    ),
]
Preprocessing = Annotated[
    list[str] | None,
    typer.Option(
        metavar="'mean=M scale=S layout=L'",
        help=(
            "The preprocessing of images and sounds: (x - mean) * scale, for pixels from 0 to 255. mean and scale are"
            " one number or one per channel; layout=nchw or nhwc. In quotes, or one part at a time. [default: pixels /"
            " 255]"
        ),
    ),
]
