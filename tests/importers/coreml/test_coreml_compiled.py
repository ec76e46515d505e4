"""Compiled models (`NAME.mlmodelc`): MIL text as Core ML's compiler writes it, of two generations, with its weights."""

import re
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from hexane import _core
from hexane.errors import Error, UnsupportedError
from hexane.importers.coreml.model import open_model

WEIGHT = np.random.default_rng(3).standard_normal((4, 3, 3, 3)).astype(np.float16) / 4
DENSE = np.random.default_rng(4).standard_normal((5, 4)).astype(np.float16)
BIAS = np.arange(5, dtype=np.float16)
PHOTO = np.random.default_rng(5).integers(0, 256, (1, 3, 8, 8)).astype(np.float32)

# Systems before iOS 18 write numbers as tensors without axes; newer ones as scalars, in program(1.3).
EARLY = """program(1.0)
[buildInfo = dict<tensor<string, []>, tensor<string, []>>({{"coremlc-component-MIL", "3304.5.2"}, {"coremlc-version", "3304.6.2"}, {"coremltools-component-torch", "2.1.0"}})]
{
    func main<ios16>(tensor<fp32, [1, 3, 8, 8]> image) {
            tensor<string, []> image_to_fp16_dtype_0 = const()[name = tensor<string, []>("image_to_fp16_dtype_0"), val = tensor<string, []>("fp16")];
            tensor<string, []> pad_type_0 = const()[name = tensor<string, []>("pad_type_0"), val = tensor<string, []>("same")];
            tensor<int32, [2]> strides_0 = const()[name = tensor<string, []>("strides_0"), val = tensor<int32, [2]>([2, 2])];
            tensor<int32, [4]> pad_0 = const()[name = tensor<string, []>("pad_0"), val = tensor<int32, [4]>([0, 0, 0, 0])];
            tensor<int32, [2]> dilations_0 = const()[name = tensor<string, []>("dilations_0"), val = tensor<int32, [2]>([1, 1])];
            tensor<int32, []> groups_0 = const()[name = tensor<string, []>("groups_0"), val = tensor<int32, []>(1)];
            tensor<fp16, [4, 3, 3, 3]> weight = const()[name = tensor<string, []>("weight"), val = tensor<fp16, [4, 3, 3, 3]>(BLOBFILE(path = tensor<string, []>("@model_path/weights/weight.bin"), offset = tensor<uint64, []>(@WEIGHT)))];
            tensor<fp16, [1, 3, 8, 8]> image_to_fp16 = cast(dtype = image_to_fp16_dtype_0, x = image)[name = tensor<string, []>("cast_0")];
            tensor<fp16, [1, 4, 4, 4]> conv_0 = conv(dilations = dilations_0, groups = groups_0, pad = pad_0, pad_type = pad_type_0, strides = strides_0, weight = weight, x = image_to_fp16)[name = tensor<string, []>("stem/conv")];
            tensor<fp16, [1, 4, 4, 4]> relu_0 = relu(x = conv_0)[name = tensor<string, []>("stem/relu")];
            tensor<int32, [2]> axes_0 = const()[name = tensor<string, []>("axes_0"), val = tensor<int32, [2]>([2, 3])];
            tensor<bool, []> keep_dims_0 = const()[name = tensor<string, []>("keep_dims_0"), val = tensor<bool, []>(false)];
            tensor<fp16, [1, 4]> mean_0 = reduce_mean(axes = axes_0, keep_dims = keep_dims_0, x = relu_0)[name = tensor<string, []>("mean")];
            tensor<fp16, [5, 4]> dense = const()[name = tensor<string, []>("dense"), val = tensor<fp16, [5, 4]>(BLOBFILE(path = tensor<string, []>("@model_path/weights/weight.bin"), offset = tensor<uint64, []>(@DENSE)))];
            tensor<fp16, [5]> bias = const()[name = tensor<string, []>("bias"), val = tensor<fp16, [5]>([0x0p+0, 0x1p+0, 0x1p+1, 0x1.8p+1, 0x1p+2])];
            tensor<fp16, [1, 5]> linear_0 = linear(bias = bias, weight = dense, x = mean_0)[name = tensor<string, []>("head")];
            tensor<string, []> out_dtype_0 = const()[name = tensor<string, []>("out_dtype_0"), val = tensor<string, []>("fp32")];
            tensor<fp32, [1, 5]> scores = cast(dtype = out_dtype_0, x = linear_0)[name = tensor<string, []>("cast_1")];
        } -> (scores);
}"""


def newer(text: str) -> str:
    for dtype in ("string", "int32", "bool", "uint64"):
        text = text.replace(f"tensor<{dtype}, []>", dtype)
    return text.replace("program(1.0)", "program(1.3)").replace("main<ios16>", "main<ios18>")


def compiled(folder: Path, text: str) -> Path:
    made = folder / "net.mlmodelc"
    (made / "weights").mkdir(parents=True)
    file = _core.WeightFile([("fp16", WEIGHT), ("fp16", DENSE)])
    for name, offset in zip(("@WEIGHT", "@DENSE"), file.offsets, strict=True):
        text = text.replace(name, str(offset))
    (made / "model.mil").write_text(text, encoding="utf-8")
    _core.save_file(str(made / "weights" / "weight.bin"), file, False)
    (made / "coremldata.bin").write_bytes(b"\xf6\x01\x00\x00" + bytes(60))
    return made


def expected() -> np.ndarray:
    """In fp64: windows of 3 x 3 every 2, one row and column of zeros behind."""
    x = np.pad(PHOTO.astype(np.float64), ((0, 0), (0, 0), (0, 1), (0, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[:, :, ::2, ::2]
    stem = np.maximum(np.einsum("nchwij,ocij->nohw", windows, WEIGHT.astype(np.float64)), 0)
    return stem.mean((2, 3)) @ DENSE.astype(np.float64).T + BIAS


@pytest.mark.parametrize(("text", "system"), [(EARLY, 16), (newer(EARLY), 18)])
def test_a_compiled_model_computes_what_its_text_says(tmp_path: Path, text: str, system: int) -> None:
    made = compiled(tmp_path, text)
    net = hx.compile(made)
    want = expected()
    assert [str(port.name) for port in (*net.inputs, *net.outputs)] == ["image", "scores"]
    got = np.asarray(net(PHOTO))
    assert np.abs(got - want).max() <= 4e-3 * np.abs(want).max()
    model = open_model(made)
    assert model.program("main").opset == system
    assert [op.label for op in model.program("main").block.operations if op.op == "conv"] == ["stem/conv"]
    assert [(name, count) for name, count, _ in model.encodings()] == [("fp16", 2)]


def test_weights_that_are_missing_or_elsewhere_are_refused(tmp_path: Path) -> None:
    made = compiled(tmp_path, EARLY)
    (made / "weights" / "weight.bin").unlink()
    with pytest.raises(Error, match=r"weights: .*weights/weight\.bin"):
        hx.compile(made)
    text = (made / "model.mil").read_text().replace("@model_path/weights/", "@model_path/../")
    (made / "model.mil").write_text(text)
    with pytest.raises(Error, match="inside the model's folder"):
        hx.compile(made)


def test_a_text_that_ends_early_and_a_folder_without_text_say_so(tmp_path: Path) -> None:
    made = compiled(tmp_path, EARLY)
    (made / "model.mil").write_text(EARLY[: len(EARLY) // 2])
    with pytest.raises(Error, match=r"net\.mlmodelc"):
        hx.compile(made)
    (made / "model.mil").unlink()
    with pytest.raises(UnsupportedError, match=r"without model\.mil"):
        hx.compile(made)


STATEFUL = """program(1.3)
[buildInfo = dict<string, string>({{"coremlc-component-MIL", "3510.2.1"}, {"coremlc-version", "3505.4.1"}})]
{
    func add<ios18>(tensor<fp16, [1, 4]> x, state<tensor<fp16, [1, 4]>> total) {
            tensor<fp16, [1, 4]> read = read_state(input = total)[name = string("read")];
            tensor<fp16, [1, 4]> sum = add(x = x, y = read)[name = string("sum")];
            write_state(data = sum, input = total)[name = string("write")];
            tensor<fp16, [1, 4]> now = read_state(input = total)[name = string("now")];
        } -> (now);
    func twice<ios18>(tensor<fp16, [1, 4]> x) {
            fp16 two = const()[name = string("two"), val = fp16(0x1p+1)];
            tensor<fp16, [1, 4]> y = mul(x = x, y = two)[name = string("y")];
        } -> (y);
}"""


def test_states_and_several_functions_of_a_compiled_model(tmp_path: Path) -> None:
    made = compiled(tmp_path, STATEFUL)
    (made / "metadata.json").write_text('[{"defaultFunctionName": "twice", "specificationVersion": 9}]')
    assert open_model(made).functions == ("twice", "add")
    x = np.arange(4, dtype=np.float16).reshape(1, 4)
    net = hx.compile(f"{made}#add")
    for count in (1, 2, 3):
        np.testing.assert_array_equal(net(x), count * x)
    np.testing.assert_array_equal(hx.compile(f"{made}#twice")(x), 2 * x)
    (made / "metadata.json").write_text("{}")
    with pytest.raises(Error, match=r"metadata\.json: got no description of a compiled model"):
        open_model(made)


# A loop in a branch in a loop. Core ML's compiler has published no text with blocks: these are written as functions are.
BLOCKS = """program(1.0)
[buildInfo = dict<tensor<string, []>, tensor<string, []>>({{"coremlc-component-MIL", "3304.5.2"}})]
{
    func main<ios16>(tensor<fp32, [4]> x, tensor<fp32, [1]> end) {
            tensor<int32, []> zero = const()[name = tensor<string, []>("zero"), val = tensor<int32, []>(0)];
            tensor<int32, []> one = const()[name = tensor<string, []>("one"), val = tensor<int32, []>(1)];
            tensor<fp32, []> two = const()[name = tensor<string, []>("two"), val = tensor<fp32, []>(0x1p+1)];
            tensor<fp32, []> half = const()[name = tensor<string, []>("half"), val = tensor<fp32, []>(0x1p-1)];
            tensor<int32, [1]> axes = const()[name = tensor<string, []>("axes"), val = tensor<int32, [1]>([0])];
            tensor<bool, []> gone = const()[name = tensor<string, []>("gone"), val = tensor<bool, []>(false)];
            tensor<fp32, []> limit = squeeze(x = end)[name = tensor<string, []>("limit")];
            tensor<int32, []> steps, tensor<fp32, [4]> y = while_loop(loop_vars = (zero, x))
                @COND(tensor<int32, []> k, tensor<fp32, [4]> s) {
                    tensor<fp32, []> sum = reduce_sum(axes = axes, keep_dims = gone, x = s)[name = tensor<string, []>("sum")];
                    tensor<bool, []> less = less(x = sum, y = limit)[name = tensor<string, []>("less")];
                } -> (less)@COMMA
                @BODY(tensor<int32, []> k, tensor<fp32, [4]> s) {
                    tensor<int32, []> next = add(x = k, y = one)[name = tensor<string, []>("next")];
                    tensor<fp32, []> top = reduce_max(axes = axes, keep_dims = gone, x = s)[name = tensor<string, []>("top")];
                    tensor<bool, []> large = greater(x = top, y = half)[name = tensor<string, []>("large")];
                    tensor<fp32, [4]> t = cond(pred = large)
                        @TRUE{
                            tensor<fp32, [4]> u = while_loop(loop_vars = s) (tensor<fp32, [4]> v) {
                                tensor<fp32, []> most = reduce_max(axes = axes, keep_dims = gone, x = v)[name = tensor<string, []>("most")];
                                tensor<bool, []> above = greater(x = most, y = half)[name = tensor<string, []>("above")];
                            } -> (above) (tensor<fp32, [4]> v) {
                                tensor<fp32, [4]> w = mul(x = v, y = half)[name = tensor<string, []>("w")];
                            } -> (w)[name = tensor<string, []>("u")];
                            tensor<fp32, [4]> z = add(x = u, y = s)[name = tensor<string, []>("z")];
                        } -> (z)@COMMA
                        @FALSE{
                            tensor<fp32, [4]> d = mul(x = s, y = two)[name = tensor<string, []>("d")];
                        } -> (d)[name = tensor<string, []>("t")];
                } -> (next, t)[name = tensor<string, []>("y")];
            tensor<fp32, [4]> out = identity(x = y)[name = tensor<string, []>("out")];
        } -> (out, steps);
}"""


@pytest.mark.parametrize(
    "names", [("", "", "", "", ""), ("loop_cond", "loop_body", "yes()", "no()", ","), ("a", "b", "c()", "d()", "")]
)
@pytest.mark.parametrize("generation", [15, 18])
def test_blocks_of_loops_and_branches(tmp_path: Path, names: tuple[str, ...], generation: int) -> None:
    text = BLOCKS
    for place, name in zip(("@COND", "@BODY", "@TRUE", "@FALSE", "@COMMA"), names, strict=True):
        text = text.replace(place, name)
    made = compiled(tmp_path, text if generation == 15 else newer(text))
    net = hx.compile(made)
    for first in ([0.01, 0.02, -0.03, 0.1], [0.4, 0.1, 0.1, 0.2], [9.0, 0.0, 0.0, 0.0]):
        s, k = np.array(first, np.float32), 0
        while s.sum() < 4:
            v = s
            if s.max() > 0.5:
                while v.max() > 0.5:
                    v = v * np.float32(0.5)
                s = v + s
            else:
                s = s * 2
            k += 1
        got = net(x=np.array(first, np.float32), end=np.array([4], np.float32))
        np.testing.assert_allclose(got["out"], s, rtol=1e-6)
        assert got["steps"] == k


def test_a_text_whose_blocks_are_damaged_says_where(tmp_path: Path) -> None:
    text = BLOCKS
    for place in ("@COND", "@BODY", "@TRUE", "@FALSE", "@COMMA"):
        text = text.replace(place, "")
    made = compiled(tmp_path, text)
    for old, new, need in (("-> (less)", "", "need '->'"), ("} -> (w)", "}", "need '->'"),
                           ("cond(pred = large)", "cond(pred = large),", "a block")):  # fmt: skip
        (made / "model.mil").write_text(text.replace(old, new))
        with pytest.raises(Error, match=rf"net\.mlmodelc:\d+:\d+\].*{need}"):
            hx.compile(made)
    deep = "t = cond(pred = p) { tensor<fp32, [4]> " * 40
    (made / "model.mil").write_text(text.replace("t = cond(pred = large)", deep))
    with pytest.raises(Error, match="blocks in blocks, more than 32 deep"):
        hx.compile(made)
    for name in ("while_loop", "cond"):  # a loop or branch with other blocks than it needs
        lines = text.splitlines()
        cut = re.sub(
            rf"= {name}\((.*?)\)(?s:.*?)\n( *)\}} -> \(\w+(, \w+)?\)\[", rf"= {name}(\1)[", "\n".join(lines), count=1
        )
        (made / "model.mil").write_text(cut)
        with pytest.raises(Error):
            hx.compile(made)
