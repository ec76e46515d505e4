"""Probes the limits of Apple's private framework: spellings, missing arguments, weights, surfaces, and the number of
programs."""

from typing import Any

import numpy as np

from hexane import _core
from hexane.errors import Error
from hexane.report.mac.lifecycle import SHAPE, X, run
from hexane.report.mac.probe import Context, Probe, Values
from hexane.report.mac.texts import blob, file_name, program, relu, result, sum_of_blobs, weights_for
from hexane.targets.dispatch import dispatch

WEIGHT = np.diag([1, 2, 3, 4]).astype(np.int8).reshape(4, 4, 1, 1)
CONV = [
    'tensor<int32, [2]> ones = const()[name = string("ones"), val = tensor<int32, [2]>([1, 1])];',
    'tensor<int32, [4]> zeros = const()[name = string("zeros"), val = tensor<int32, [4]>([0, 0, 0, 0])];',
    'string valid = const()[name = string("valid"), val = string("valid")];',
    'int32 one = const()[name = string("one"), val = int32(1)];',
]


def spelling(form: str) -> Any:
    """Returns a case: a conv whose int8 weight is decoded by a constexpr op, in one of the op's spellings."""

    def case(context: Context) -> Values:
        data, (at,) = _core.blob_write([("int8", WEIGHT)])
        kind = "tensor<int8, [4, 4, 1, 1]>"
        place = f'{kind}(BLOBFILE(path = string("@model_path/{file_name(0)}"), offset = uint64({at})))'
        given = f"axis = int32(0), quantized_data = {place}, scale = fp16(0x1p-1), zero_point = int8(0)"
        lines, opset = {
            "attributes": ([result("w", WEIGHT.shape, "constexpr_affine_dequantize", "", f"{given}, ")], "ios16"),
            "arguments": ([result("w", WEIGHT.shape, "constexpr_affine_dequantize", given)], "ios16"),
            "blockwise": (
                [
                    blob("q", WEIGHT.shape, file_name(0), at, "int8"),
                    'tensor<fp16, [1, 1, 1, 1]> s = const()[name = string("s"), '
                    "val = tensor<fp16, [1, 1, 1, 1]>([[[[0x1p-1]]]])];",
                    result("w", WEIGHT.shape, "constexpr_blockwise_shift_scale", "data = q, scale = s"),
                ],
                "ios18",
            ),
        }[form]
        arguments = "dilations = ones, groups = one, pad = zeros, pad_type = valid, strides = ones, weight = w, x = x"
        name = f"y_{form}_{context.salt}"
        mil = program({"x": SHAPE}, [*CONV, *lines, result(name, SHAPE, "conv", arguments)], [name], opset)
        want = X * np.float16(0.5) * np.array([1, 2, 3, 4], np.float16).reshape(1, 4, 1, 1)
        return _runs(context, mil, {file_name(0): data}, want)

    return case


def _runs(context: Context, mil: str, files: dict[str, bytes], want: Any = None) -> Values:
    qos = dispatch().default_qos
    compiled = context.device().compile(mil, files, qos)
    compiled.load(qos)
    return {"compiles": True} | ({} if want is None else {"right": bool(np.array_equal(run(compiled), want))})


LEFT_OUT = {
    "gelu without mode": ("gelu", "x = x"),
    "gelu with mode": ("gelu", 'mode = string("EXACT"), x = x'),
    "rsqrt without epsilon": ("rsqrt", "x = x"),
    "rsqrt with epsilon": ("rsqrt", "epsilon = fp16(0x0p+0), x = x"),
    "concat without interleave": ("concat", "axis = int32(1), values = (x, x)"),
    "concat with interleave": ("concat", "axis = int32(1), interleave = bool(false), values = (x, x)"),
}


def left_out(op: str, arguments: str) -> Any:
    def case(context: Context) -> Values:
        name = f"y_{context.salt}"
        shape = (1, 8, 3, 32) if op == "concat" else SHAPE
        return _runs(context, program({"x": SHAPE}, [result(name, shape, op, arguments)], [name]), {})

    return case


def blobs(count: int, num_files: int) -> Any:
    def case(context: Context) -> Values:
        values = weights_for(count)
        salt = f"{count}_{num_files}_{context.salt}"
        return _runs(context, *sum_of_blobs(values, num_files, salt), X + sum(values))

    return case


def scalar_in_file(context: Context) -> Values:
    """Runs a program with a weight of rank 0 in a file, which Hexane never writes."""
    data, (at,) = _core.blob_write([("fp16", np.full((), 2, np.float16))])
    place = f'BLOBFILE(path = string("@model_path/{file_name(0)}"), offset = uint64({at}))'
    name = f"y_scalar_{context.salt}"
    lines = [
        f'fp16 w = const()[name = string("w"), val = fp16({place})];',
        result(name, SHAPE, "mul", "x = x, y = w"),
    ]
    return _runs(context, program({"x": SHAPE}, lines, [name]), {file_name(0): data}, X * np.float16(2))


def surfaces(sizes: tuple[int, ...]) -> Any:
    """Returns a case: two inputs and an output on surfaces of these multiples of the least size."""

    def case(context: Context) -> Values:
        facts, name = dispatch(), f"y_{context.salt}"
        small = (1, 4, 1, 1)
        mil = program({"x": SHAPE, "b": small}, [result(name, SHAPE, "add", "x = x, y = b")], [name])
        compiled = context.device().compile(mil, {}, facts.default_qos)
        compiled.load(facts.default_qos)
        b = np.arange(4, dtype=np.float16).reshape(small)
        given = [size * facts.least_surface_bytes for size in sizes]
        (y,) = compiled.run({"x": X, "b": b}, qos=facts.default_qos, surface_bytes=given).values()
        return {"bytes": given, "right": bool(np.array_equal(y, X + b))}

    return case


def many_compiles(context: Context) -> Values:
    """Compiles many different programs in one process, and frees each at once."""
    device, qos = context.device(limited=False), dispatch().default_qos
    for i in range(context.programs):
        try:
            device.compile(relu(SHAPE, f"c{i}_{context.salt}"), {}, qos)
        except Error as error:
            return {"asked": context.programs, "worked": i, "error": str(error)}
    return {"asked": context.programs, "worked": context.programs}


def many_loads(context: Context) -> Values:
    """Loads many programs at once in one process. Programs of the previous case come from the cache."""
    device, qos = context.device(limited=False), dispatch().default_qos
    held, count = [], 0
    for i in range(context.programs):
        mil = relu(SHAPE, f"c{i}_{context.salt}")
        try:
            program = device.find(mil, {})
            count += program is not None
            program = program or device.compile(mil, {}, qos)
            program.load(qos)
        except Error as error:
            return {"asked": context.programs, "worked": i, "found": count, "error": str(error)}
        held.append(program)
    return {"asked": context.programs, "worked": len(held), "found": count, "counters": device.counters}


SPELLING = Probe(
    "spelling",
    "Which spelling of constexpr ops compiles?",
    {form: spelling(form) for form in ("attributes", "arguments", "blockwise")},
)
ARGUMENTS = Probe(
    "arguments",
    "Which arguments may a text leave out?",
    {name: left_out(*given) for name, given in LEFT_OUT.items()},
)
COUNTS = (15, 16, 17, 64)
BLOBS = Probe(
    "blobs",
    "How many weights may a program have, in one file and in several?",
    {
        f"{count} in {'one file' if files == 1 else f'{files} files'}": blobs(count, files)
        for count in COUNTS
        for files in (1, 2, count)
    }
    | {"a weight of rank 0": scalar_in_file},
)
SIZES = {"equal": (1, 1, 1), "inputs unequal": (1, 2, 2), "inputs falling": (2, 1, 2), "output larger": (1, 1, 2)}
SURFACES = Probe(
    "surfaces",
    "Have the surfaces of a request to be of one size?",
    {name: surfaces(sizes) for name, sizes in SIZES.items()},
)
MANY = Probe(
    "limits",
    "How many programs may a process compile, and have loaded?",
    {"compiles": many_compiles, "loads": many_loads},
    seconds=900.0,
)
