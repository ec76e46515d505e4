"""MIL texts of small programs, written by hand and not by the emitter: the spelling itself is under test."""

from collections.abc import Mapping, Sequence

import numpy as np

from hexane import _core
from hexane.graph import Array

HEAD = """program(1.3)
[buildInfo = dict<string, string>({{"coremlc-component-MIL", "3510.2.1"}, {"coremlc-version", "3505.4.1"}})]
"""
Shape = tuple[int, ...]


def tensor(shape: Shape, dtype: str = "fp16") -> str:
    return f"tensor<{dtype}, [{', '.join(map(str, shape))}]>"


def program(inputs: Mapping[str, Shape], lines: Sequence[str], outputs: Sequence[str], opset: str = "ios18") -> str:
    """Returns the text of a program with one function."""
    given = ", ".join(f"{tensor(shape)} {name}" for name, shape in inputs.items())
    body = "".join(f"        {line}\n" for line in lines)
    return f"{HEAD}{{\n    func main<{opset}>({given}) {{\n{body}    }} -> ({', '.join(outputs)});\n}}\n"


def result(name: str, shape: Shape, op: str, arguments: str, attributes: str = "") -> str:
    return f'{tensor(shape)} {name} = {op}({arguments})[{attributes}name = string("{name}")];'


def relu(shape: Shape, name: str) -> str:
    """Returns the text of y = relu(x). name: of the op's result; each name gives a different program."""
    return program({"x": shape}, [result(name, shape, "relu", "x = x")], [name])


def file_name(index: int) -> str:
    return f"weights/weights{index or ''}.bin"


def blob(name: str, shape: Shape, file: str, offset: int, dtype: str = "fp16") -> str:
    kind = tensor(shape, dtype)
    place = f'BLOBFILE(path = string("@model_path/{file}"), offset = uint64({offset}))'
    return f'{kind} {name} = const()[name = string("{name}"), val = {kind}({place})];'


def sum_of_blobs(values: Sequence[Array], num_files: int, salt: str) -> tuple[str, dict[str, bytes]]:
    """Returns a program that adds all values to x, and its weight files. The values are dealt to `num_files` files."""
    shape = (1, 4, 3, 32)
    lines, files = [], {}
    groups = [list(range(i, len(values), num_files)) for i in range(num_files)]
    for number, group in enumerate(groups):
        data, offsets = _core.blob_write([("fp16", values[i]) for i in group])
        files[file_name(number)] = data
        lines += [blob(f"w{i}", values[i].shape, file_name(number), at) for i, at in zip(group, offsets, strict=True)]
    before = "x"
    for i in range(len(values)):
        name = f"y{i}_{salt}"
        lines.append(result(name, shape, "add", f"x = {before}, y = w{i}"))
        before = name
    return program({"x": shape}, lines, [before]), files


def weights_for(count: int, start: int = 1) -> list[Array]:
    """Returns weights of small whole numbers: sums of hundreds of them are exact in fp16."""
    return [np.full((1, 4, 1, 1), start + i % 5, np.float16) for i in range(count)]
