"""MIL text as others write it, and text that is none: what is read, and where an error says the mistake is."""

import re
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from hexane import _core
from hexane.errors import Error
from hexane.graph import Graph
from hexane.importers.mil import load_mil, load_mil_file
from hexane.mil.forms import READ
from hexane.ops.reference import run_reference
from hexane.ops.rewriter import Rewriter

INFO = '[buildInfo = dict<string, string>({{"coremlc-component-MIL", "3510.2.1"}, {"coremlc-version", "3505.4.1"}})]'
WEIGHT = np.arange(12, dtype=np.float16).reshape(4, 3, 1, 1) / 8


def text(body: str, inputs: str = "tensor<fp16, [1, 4]> x", output: str = "y") -> str:
    return f"program(1.3)\n{INFO}\n{{\n    func main<ios18>({inputs}) {{\n        {body}\n    }} -> ({output});\n}}\n"


def read(body: str, inputs: str = "tensor<fp16, [1, 4]> x", output: str = "y", weights: bytes = b"") -> Graph:
    return load_mil(text(body, inputs, output), weights)


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes if node.op not in ("input", "const")]


def run(graph: Graph, *arrays: object) -> np.ndarray:
    names = graph.input_names()
    feeds = {name: np.asarray(array, np.float16) for name, array in zip(names, arrays, strict=True)}
    return np.asarray(next(iter(run_reference(graph, feeds).values())))


# ---- programs of others ----

CONV = """program(1.3)
[buildInfo = dict<string, string>({{"coremlc-component-MIL", "3510.2.1"}, {"coremlc-version", "3505.4.1"}, {"coremltools-component-milinternal", ""}, {"coremltools-version", "9.0"}})]
{
    func main<ios18>(tensor<fp32, [1, 3, 1, 2]> x) {
        string to16 = const()[name=string("to16"), val=string("fp16")];
        tensor<fp16, [1,3,1,2]> x16 = cast(dtype=to16,x=x)[name=string("cx")];
        string pt = const()[name=string("pt"), val=string("valid")];
        tensor<int32, [2]> st = const()[name=string("st"), val=tensor<int32, [2]>([1,1])];
        tensor<int32, [4]> pd = const()[name=string("pd"), val=tensor<int32, [4]>([0,0,0,0])];
        tensor<int32, [2]> dl = const()[name=string("dl"), val=tensor<int32, [2]>([1,1])];
        int32 gr = const()[name=string("gr"), val=int32(1)];
        tensor<fp16, [4,3,1,1]> W = const()[name=string("W"), val=tensor<fp16, [4,3,1,1]>(BLOBFILE(path=string("@model_path/weights/weight.bin"), offset=uint64(64)))];
        tensor<fp16, [1,4,1,2]> y16 = conv(dilations=dl,groups=gr,pad=pd,pad_type=pt,strides=st,weight=W,x=x16)[name=string("conv")];
        string to32 = const()[name=string("to32"), val=string("fp32")];
        tensor<fp32, [1,4,1,2]> y = cast(dtype=to32,x=y16)[name=string("cy")];
    } -> (y);
}
"""


def test_a_convolution_as_training_code_writes_it() -> None:
    blob, _ = _core.blob_write([("fp16", WEIGHT)])
    graph = load_mil(CONV, {"@model_path/weights/weight.bin": blob})
    assert ops(graph) == ["cast", "conv", "cast"]
    x = np.arange(6, dtype=np.float32).reshape(1, 3, 1, 2)
    expected = np.einsum("oi,nihw->nohw", WEIGHT[..., 0, 0].astype(np.float32), x)
    np.testing.assert_allclose(hx.compile(graph)(x), expected, rtol=1e-3)


def test_attention_as_training_code_writes_it() -> None:
    """Inline bools, reshape and transpose to heads, and back; mask and softmax between."""
    graph = read(
        """tensor<int32, [4]> qsh = const()[name=string("qsh"), val=tensor<int32, [4]>([1,2,3,4])];
        tensor<int32, [4]> pm = const()[name=string("pm"), val=tensor<int32, [4]>([0,1,3,2])];
        bool bF = const()[name=string("bF"), val=bool(false)];
        tensor<fp16, [1,2,3,4]> q4 = reshape(shape=qsh,x=x)[name=string("rq")];
        tensor<fp16, [1,2,4,3]> q = transpose(perm=pm,x=q4)[name=string("tq")];
        tensor<fp16, [1,2,4,4]> sc1 = matmul(transpose_x=bF,transpose_y=bool(true),x=q,y=q)[name=string("mm")];
        fp16 scv = const()[name=string("scv"), val=fp16(0.5)];
        tensor<fp16, [1,2,4,4]> sc2 = mul(x=sc1,y=scv)[name=string("scl")];
        tensor<fp16, [1,1,4,4]> cm = const()[name=string("cm"), val=tensor<fp16, [1,1,4,4]>(BLOBFILE(path=string("@model_path/weights/mask.bin"), offset=uint64(64)))];
        tensor<fp16, [1,2,4,4]> ms = add(x=sc2,y=cm)[name=string("msk")];
        int32 sax = const()[name=string("sax"), val=int32(-1)];
        tensor<fp16, [1,2,4,4]> aw = softmax(axis=sax,x=ms)[name=string("sm")];
        tensor<fp16, [1,2,4,3]> a4 = matmul(transpose_x=bF,transpose_y=bF,x=aw,y=q)[name=string("mm2")];
        int32 cax = const()[name=string("cax"), val=int32(1)];
        tensor<fp16, [1,4,4,3]> y = concat(axis=cax,interleave=bF,values=(a4,q))[name=string("cat")];""",
        inputs="tensor<fp16, [1, 6, 1, 4]> x",
        weights=_core.blob_write([("fp16", np.triu(np.full((4, 4), -65504, np.float16), 1)[None, None])])[0],
    )
    q = np.arange(24, dtype=np.float16).reshape(1, 2, 3, 4).transpose(0, 1, 3, 2) / 32
    scores = q.astype(np.float32) @ q.astype(np.float32).transpose(0, 1, 3, 2) * 0.5 + np.triu(
        np.full((4, 4), -65504), 1
    )
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = np.concatenate([weights / weights.sum(-1, keepdims=True) @ q, q], 1)
    x = np.arange(24, dtype=np.float16).reshape(1, 6, 1, 4) / 32
    np.testing.assert_allclose(run(graph, x), expected, rtol=4e-3, atol=1e-3)


def test_a_program_without_build_info_and_of_ios16() -> None:
    graph = load_mil(
        'program(1.0) { func f<ios16>(tensor<fp16, [2]> x) { tensor<fp16, [2]> y = relu(x = x)[name = string("y")]; }'
        " -> (y); }"
    )
    assert ops(graph) == ["relu"]
    assert graph.name == "f"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('tensor<fp16, [1, 4]> y = rsqrt(x = x, epsilon = fp16(0x1p-10))[name = string("y")];', ["add", "rsqrt"]),
        ('tensor<fp16, [1, 4]> y = log(x = x, epsilon = fp16(0x0p+0))[name = string("y")];', ["log"]),
        ('tensor<fp16, [1, 4]> y = gelu(x = x, mode = string("SIGMOID_APPROXIMATION"))[name = string("y")];', ["mul", "sigmoid", "mul"]),
        ('tensor<fp16, [1, 8]> y = concat(values = (x, x), axis = int32(1), interleave = bool(true))[name = string("y")];', ["stack", "reshape"]),
        ('tensor<fp16, [1, 2]> y = slice_by_index(x = x, begin = tensor<int32, [2]>([0, 1]), end = tensor<int32, [2]>([1, 3]))[name = string("y")];', ["slice_by_index"]),
        ('tensor<fp16, [4]> y = slice_by_index(x = x, begin = tensor<int32, [2]>([0, 0]), end = tensor<int32, [2]>([0, 0]), '
         'end_mask = tensor<bool, [2]>([false, true]), squeeze_mask = tensor<bool, [2]>([true, false]))[name = string("y")];', ["slice_by_index", "squeeze"]),
        ('tensor<fp16, [1, 4]> y = layer_norm(x = x, axes = tensor<int32, [1]>([0]))[name = string("y")];', ["transpose", "layer_norm", "transpose"]),
        ('tensor<fp16, [4, 1]> y = reshape(x = x, shape = tensor<int32, [2]>([-1, 1]))[name = string("y")];', ["reshape"]),
        ('tensor<fp16, [1, 2]> a, tensor<fp16, [1, 2]> y = split(x = x, num_splits = int32(2), axis = int32(-1))[name = string("y")];', ["split"]),
        ('tensor<fp16, [1, 4]> y = identity(x = x)[name = string("y")];', []),
    ],
)  # fmt: skip
def test_forms_that_are_only_read(body: str, expected: list[str]) -> None:
    assert ops(read(body)) == expected


@pytest.mark.parametrize(
    ("literal", "expected"),
    [
        ("tensor<fp16, [2]>([0x1.8p-3, -1])", [0.1875, -1]),
        ("tensor<fp16, [2]>([0x3C00, 0xBC00])", [1, -1]),
        ("tensor<fp16, [2]>([1e-2, .5])", [float(np.float16(0.01)), 0.5]),
        ("tensor<fp16, [2]>([inf, -inf])", [float("inf"), -float("inf")]),
        ("tensor<fp16, [2]>([-0x1p-24, 65504])", [-(2.0**-24), 65504]),
    ],
)
def test_numbers(literal: str, expected: list[float]) -> None:
    graph = read(f'tensor<fp16, [2]> c = const()[name = string("c"), val = {literal}]; '
                 'tensor<fp16, [2]> y = add(x = x, y = c)[name = string("y")];', "tensor<fp16, [2]> x")  # fmt: skip
    assert [node.data.tolist() for node in graph.nodes if node.data is not None] == [expected]


@pytest.mark.parametrize("pad_type", ["same", "same_lower"])
def test_padding_by_name_keeps_the_extent(pad_type: str) -> None:
    graph = read(
        "tensor<fp16, [1, 1, 3, 3]> y = max_pool(x = x, kernel_sizes = tensor<int32, [2]>([2, 2]), strides ="
        " tensor<int32, [2]>([1, 1]), "
        f'pad_type = string("{pad_type}"), pad = tensor<int32, [4]>([0, 0, 0, 0]), ceil_mode = bool(false))[name ='
        ' string("y")];',
        "tensor<fp16, [1, 1, 3, 3]> x",
    )
    assert graph.nodes[-1].attrs["pad"] == ((0, 1, 0, 1) if pad_type == "same" else (1, 0, 1, 0))


# ---- mistakes ----

Y = '[name = string("y")];'


@pytest.mark.parametrize(
    ("body", "at", "message"),
    [
        ("tensor<fp16, [1, 4]> y = relu(x = z)" + Y, "5:34", "relu: x: got z, need a value that is defined above"),
        ("tensor<fp16, [1, 5]> y = relu(x = x)" + Y, "5:34", r"relu: got the type tensor<fp16, \[1, 5\]> for y, need tensor<fp16, \[1, 4\]>"),
        ("tensor<fp32, [1, 4]> y = relu(x = x)" + Y, "5:34", "relu: got the type"),
        ("tensor<fp16, [1, 4]> y = relux(x = x)" + Y, "5:34", "got the op relux"),
        ("tensor<fp16, [1, 4]> y = relu(x = x, alpha = fp16(1))" + Y, "5:34", "relu: got the argument alpha, need some of x"),
        ("tensor<fp16, [1, 4]> y = relu()" + Y, "5:34", "relu: need the argument x"),
        ("tensor<fp16, [1, 8]> y = concat(values = (x, x), axis = int32(1))" + Y, "5:34", "need the argument interleave: text has no defaults"),
        ("tensor<fp16, [1, 4]> y = softmax(x = x)" + Y, "5:34", "need the argument axis: text has no defaults"),
        ("tensor<fp16, [1, 4]> y = gelu(x = x)" + Y, "5:34", "need the argument mode: text has no defaults"),
        ("tensor<fp16, [1, 4]> y = rsqrt(x = x)" + Y, "5:34", "need the argument epsilon: text has no defaults"),
        ("tensor<fp16, [1, 4]> y = elu(x = x, alpha = fp32(1))" + Y, "5:34", "alpha: got fp32, need fp16"),
        ("tensor<fp16, [1, 4]> y = softmax(x = x, axis = fp16(1))" + Y, "5:34", "axis: got fp16, need one of int or uint"),
        ("tensor<fp16, [1, 4]> y = softmax(x = x, axis = x)" + Y, "5:34", "that is computed, need a constant"),
        ("tensor<fp16, [1, 4]> y = softmax(x = x, axis = int32(2))" + Y, "5:34", "axis: got 2, need -2..1"),
        ("tensor<fp16, [1, 4]> y = relu(x = x, x = x)" + Y, "5:46", "got the argument x twice"),
        ("tensor<fp16, [1, 4]> y = relu(x = (x, x))" + Y, "5:34", "x: need one value"),
        ("tensor<fp16, [1, 4]> y = concat(values = x, axis = int32(1), interleave = bool(false))" + Y, "5:34", "values: need several"),
        ("tensor<fp16, [1, 4]> x = relu(x = x)" + Y, "5:34", "got the name x a second time"),
        ("tensor<fp16, [1, 2]> y = split(x = x, num_splits = int32(2), axis = int32(1))" + Y, "5:34", "got 1 results, need 2"),
        ("tensor<fp16, [1, 4]> y = cast(x = x, dtype = string(\"int64\"))" + Y, "5:34", "got the dtype int64"),
        ("tensor<fp16, [1, 4]> y = relu(x = x)[name = int32(1)];", "5:34", "name: need name = string"),
        ("tensor<fp16, [1, 4]> y = relu(x = x)[name = string(\"y\")]", "6:5", "got '}', need ';'"),
        ("tensor<fp16, [1, -4]> y = relu(x = x)" + Y, "5:26", "got the extent -4"),
        ("tensor<fp16, [1, ?]> y = relu(x = x)" + Y, "5:26", r"got '\?', which begins nothing in MIL"),
        ("int64 c = const()[name = string(\"c\"), val = int64(1)];", "5:19", "const: got the dtype int64"),
        ("fp16 c = const()[name = string(\"c\"), val = int32(1)];", "5:18", r"const: val: need fp16\(..\)"),
        ("int8 c = const()[name = string(\"c\"), val = int8(128)];", "5:18", "got a number outside -128..127"),
        ("fp16 c = const()[name = string(\"c\"), val = fp16(65520)];", "5:18", "got a number that fp16 does not hold"),
        ("bool c = const()[name = string(\"c\"), val = bool(1)];", "5:18", "got 1, need true or false"),
        ("tensor<int32, [2]> c = const()[name = string(\"c\"), val = tensor<int32, [2]>([1])];", "5:32", "got 1 elements, need 2"),
        ("tensor<int32, [1, 1]> c = const()[name = string(\"c\"), val = tensor<int32, [1, 1]>([1])];", "5:35", "need a list for each axis"),
        ("tensor<fp16, [1, 4]> y = relu(x = tensor<fp16, [1]>([[[[[[[[[1]]]]]]]]]))" + Y, "5:69", "nested deeper than 8"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_line_and_column(body: str, at: str, message: str) -> None:
    with pytest.raises(Error, match=rf"^\[MIL:{at}\] .*{message}"):
        read(body)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("-> (y);", "-> (z);"), "6:11] got the output z"),
        (("-> (y);", "-> (y, y);"), "6:14] got the output y"),
        (("-> (y);", "-> (y)"), "7:1] got '}', need ';'"),
        (("program(1.3)", "programme(1.3)"), "1:1] got 'programme', need 'program'"),
        (
            ("tensor<fp16, [1, 4]> x)", "tensor<fp16, [1, 4]> x, fp16 x)"),
            "MIL] func main: got the name x a second time",
        ),
        (("tensor<fp16, [1, 4]> x)", "tensor<half, [1, 4]> x)"), "MIL] func main: got the dtype half"),
        (("tensor<fp16, [1, 4]> x)", "state<tensor<fp16, [1, 4]>> x)"), "4:22] got 'state', need a type of tensors"),
        (("(y);\n}", "(y);\n func g<ios18>() {} -> (y); }"), "7:2] got 'func', need the end of the program"),
        (("(y);\n}", "(y);\n} x"), "7:3] got 'x', need nothing after the program"),
        (('"3510.2.1"', "3510"), "2:62] got '3510', need a string"),
    ],
)
def test_a_mistake_around_the_statements_is_named(change: tuple[str, str], message: str) -> None:
    good = text("tensor<fp16, [1, 4]> y = relu(x = x)" + Y)
    assert change[0] in good
    with pytest.raises(Error, match=re.escape(message)):
        load_mil(good.replace(*change))


# ---- weights ----

BLOB = (
    'tensor<{}> c = const()[name = string("c"), val = tensor<{}>(BLOBFILE(path = string("{}"), offset = uint64({})))]; '
)
ADD = 'tensor<fp16, [1, 4]> y = add(x = x, y = c)[name = string("y")];'


@pytest.mark.parametrize(
    ("kind", "path", "offset", "message"),
    [
        ("fp16, [4]", "@model_path/w.bin", 128, r"metadata: got \[128, \+64\), need it inside \[0, 136\)"),
        ("fp32, [2]", "@model_path/w.bin", 64, "got fp16 at offset 64 of @model_path/w.bin, need fp32"),
        (
            "fp16, [5]",
            "@model_path/w.bin",
            64,
            r"got 4 elements at offset 64 of @model_path/w.bin, need 5 for tensor<fp16, \[5\]>",
        ),
        ("fp16, [4]", "@model_path/v.bin", 64, "got the path '@model_path/v.bin', need one of '@model_path/w.bin'"),
    ],
)
def test_weights_that_are_not_what_the_text_says(kind: str, path: str, offset: int, message: str) -> None:
    blob, _ = _core.blob_write([("fp16", np.arange(4, dtype=np.float16))])
    with pytest.raises(Error, match=rf"^\[MIL:5:..\] const: {message}"):
        load_mil(text(BLOB.format(kind, kind, path, offset) + ADD), {"@model_path/w.bin": blob})


def save(folder: Path, path: str) -> Path:
    file = folder / "model.mil"
    file.write_text(text(BLOB.format("fp16, [4]", "fp16, [4]", path, 64) + ADD))
    return file


def test_a_file_is_read_with_the_weights_beside_it(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "w.bin").write_bytes(_core.blob_write([("fp16", np.arange(4, dtype=np.float16))])[0])
    graph = load_mil_file(save(tmp_path, "@model_path/weights/w.bin"))
    assert run(graph, np.ones((1, 4))).tolist() == [[1, 2, 3, 4]]


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "@model_path/../w.bin", "@model_path//etc/passwd", "@model_path/", "w.bin"]
)
def test_weights_outside_the_folder_are_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "w.bin").write_bytes(_core.blob_write([("fp16", np.arange(4, dtype=np.float16))])[0])
    with pytest.raises(
        Error, match=r"model.mil:5:\d+\] const: .*need (one that begins with @model_path/|a file inside)"
    ):
        load_mil_file(save(tmp_path / "in", path))


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.mil").write_bytes(b"\xff\xfe")
    with pytest.raises(Error, match="no UTF-8"):
        load_mil_file(tmp_path / "model.mil")


@pytest.mark.parametrize("op", ["log", "rsqrt", "inverse"])
@pytest.mark.parametrize(("dtype", "is_added"), [("fp16", False), ("fp32", True)])
def test_an_epsilon_that_fp16_rounds_to_0_is_not_added(op: str, dtype: str, is_added: bool) -> None:
    """coremltools writes an epsilon of 1e-45 for every logarithm."""
    x = hx.input("x", (4,), dtype)
    y = READ[op](Rewriter("y"), x.value, epsilon=1e-45)
    assert (y.node.inputs[0].node.op == "add") == is_added
