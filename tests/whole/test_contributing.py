"""The promises of docs/contributing.md: each kind of contribution made from nothing, and the files that it touches."""

from pathlib import Path

import pytest

from contribution import Copy

RECORDS = "python/hexane/ops/records/elementwise.py"
CATALOGUE = "tests/ops/test_catalogue.py"


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path / "hexane")


def test_a_composite_is_its_record(copy: Copy) -> None:
    copy.edit(
        RECORDS,
        '    _unary("abs"',
        '    Op(name="cube", doc="x * x * x.", inputs=("x",), shape=same, dtype=floating, cases=(Case(((2, 3,'
        " 17),)),),\n       expand=lambda b, x: b.mul(b.mul(x, x), x), ref=lambda x: x * x * x),\n",
    )
    copy.fails("run python -m hexane.cli.stub", CATALOGUE, "-k", "test_the_stub")
    copy.derive()
    copy.passes(CATALOGUE, "-k", "cube or stub or page", "tests/ops/test_dynamic.py")
    assert copy.touched() == {RECORDS}


@pytest.mark.slow
def test_a_kernel_op_is_its_record_its_kernels_and_an_accuracy_row(copy: Copy) -> None:
    """The kernels are of fp32 and fp16 in one file and of fp64 in another; both are compiled here."""
    sources = "csrc/cpu/elementwise/elementwise_unary.cpp", "csrc/cpu/elementwise/elementwise_double.cpp"
    accuracy = "tests/cpu/test_kernels_elementwise.py"
    copy.edit(RECORDS, '    _unary("abs"', '    _unary("cube", "x * x * x.", lambda x: x * x * x),\n')
    copy.derive()
    copy.fails("cube: there is no kernel 'cube'. Add a row to a table", CATALOGUE, "-k", "struct and cube")
    copy.edit(sources[0], "  OP(abs,", "  OP(cube, 90, 0, hn::Mul(hn::Mul(x, x), x)) \\\n")
    copy.edit(sources[1], "  OP(abs,", "  OP(cube, 0, 0, x * x * x) \\\n")
    copy.build(*sources)
    copy.fails("cube: no test in tests/cpu runs this kernel alone. Add a row to UNARY", CATALOGUE, "-k", "accuracy")
    copy.edit(accuracy, '    "abs": (', '    "cube": (lambda x: x**3, {}),\n')
    copy.passes(CATALOGUE, accuracy, "tests/cpu/test_kernels_double.py", "-k", "cube or stub or page or every_kernel")
    assert copy.touched() == {RECORDS, *sources, accuracy}


PASS = '''"""Gives products of a value with itself their name."""

from hexane.graph import Graph, Node, Value
from hexane.ops import OPS, apply
from hexane.targets import Target


def fuse_square(graph: Graph, target: Target) -> Graph:
    """mul(x, x)  ->  square(x)

    Numbers only.
    """

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        if node.op != "mul" or inputs[0] != inputs[1]:
            return None
        return apply(OPS["square"], inputs[:1], {}, node.sources)

    return graph.rewrite(change)
'''


def test_a_pass_is_its_file_its_place_and_a_case_it_fires_on(copy: Copy) -> None:
    own, cases = "python/hexane/passes/fuse/fuse_square.py", "tests/support/pass_cases/activations.py"
    pipeline, tests = "python/hexane/passes/order.py", "tests/passes/test_passes.py"
    named = "from hexane.passes.fuse.fuse_square import fuse_square\n"
    copy.write(own, PASS)
    copy.fails("fuse_square: in no pipeline. Give it a row in ORDER", tests, "-k", "in_a_pipeline")
    copy.edit(pipeline, "from hexane.passes.fuse.fuse_transpose import", named)
    silu = '    Pass(fuse_silu, ("host", "engine", "mil"), legal=True, needs=has("sigmoid", "mul")),\n'
    copy.edit(pipeline, silu, '    Pass(fuse_square, ("host",)),\n')
    copy.fails("fuse_square: no case. Add `NAME: (the pass,", tests, "-k", "test_every_pass")
    copy.edit(cases, "from pass_cases.graphs import", named)
    copy.edit(
        cases,
        "FIRES: dict[str, Case] = {\n",
        "",
        '    "fuse_square": (fuse_square, lambda: (lambda x: x * x)(hx.input("x", (4,)))),\n',
    )
    chosen = (tests, "-k", "fuse_square or test_every_pass or test_the_page")
    copy.fails("fuse_square.txt is missing; pytest --update-golden writes it", *chosen)
    copy.passes(*chosen, "--update-golden")
    copy.passes(*chosen)
    assert copy.touched() == {own, pipeline, cases}


def contribute_a_chip(copy: Copy) -> str:
    own, tests = "python/hexane/targets/h97.toml", "tests/targets/test_targets.py"
    copy.write(own, CHIP.replace("inherited = true\n", ""))
    copy.fails("family: guide ch35, table 35.1 does not list this chip", tests, "-k", "cite")
    (copy.folder / own).write_text(CHIP, encoding="utf-8")
    copy.passes(tests, "-k", "page_of_targets")
    assert "A17" in copy.run("-m", "hexane", "targets", "M7").stdout
    return own


def contribute_a_cpu(copy: Copy) -> str:
    """Without a layout of channels last. No page names it."""
    host = (copy.folder / "python/hexane/targets/host.toml").read_text(encoding="utf-8")
    own = "python/hexane/targets/planar.toml"
    copy.write(own, host.replace("channels_last = true", "channels_last = false"))
    ended = copy.run("-c", """if True:
        import numpy as np, hexane as hx
        x = hx.input("x", (1, 2, 5, 5))
        graph = hx.graph(hx.relu(hx.conv(x, np.ones((3, 2, 3, 3), np.float32))))
        image = np.random.default_rng(0).standard_normal((1, 2, 5, 5)).astype(np.float32)
        found = [hx.compile(graph, target=name) for name in ("host", "planar")]
        assert found[0].steps != found[1].steps
        np.testing.assert_array_equal(*(net(image) for net in found))
    """)  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "planar" in copy.run("-m", "hexane", "targets").stdout
    return own


def test_a_chip_and_a_cpu_are_each_their_file(copy: Copy) -> None:
    """The tests of targets take them in, and hold the chip to what they hold every chip to."""
    own = {contribute_a_chip(copy), contribute_a_cpu(copy)}
    copy.passes("tests/targets")
    assert copy.touched() == own


CHIP = """# A chip of which little is known.
base = "a18"
inherited = true
source = "M6 study"
status = "decoded"
silicon = "M7"
products = ["M7"]
dies = []
cores = 16
cpu_subtype = 12
descriptor = 25

[shown]
hardware_version = "unknown"

[shown.hal]
num_nes = 8
"""


def test_an_onnx_op_is_its_translation_and_a_case(copy: Copy) -> None:
    own, cases = "python/hexane/importers/onnx/handlers/sampling.py", "tests/importers/test_import_ops.py"
    case = 'C("MaxRoiPool", [rand(1, 2, 4, 4), np.float32([[0, 0, 0, 3, 3]])], {"pooled_shape": [1, 1]}, constant=(1,))'
    copy.edit(cases, "CASES = [\n", "", f"    {case},\n")
    chosen = (cases, "-k", "means_what_onnx_says and MaxRoiPool")
    copy.fails("MaxRoiPool (opset 17): Hexane has no such op yet", *chosen)
    copy.edit(own, '@onnx_op("RoiAlign")', """\
@onnx_op("MaxRoiPool")
def max_roi_pool(b: Builder, n: OnnxNode) -> Result:
    x, rois, extents = n.value(0), n.array(1), n.value(0).shape
    whole = rois.tolist() == [[0, 0, 0, extents[3] - 1, extents[2] - 1]] and n.attrs["spatial_scale"] == 1
    if not whole or n.attrs["pooled_shape"] != (1, 1):
        raise Error(f"got the regions {rois.tolist()}, need the whole image of a batch of one")
    return b.reduce_max(x, axes=(2, 3), keep_dims=True)


""")  # fmt: skip
    copy.passes(*chosen)
    assert copy.touched() == {own, cases}
