"""Plans that the C99 runtime refuses are refused before they are on a device, with the name of the step."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from hexane import _core
from hexane.emit.c99 import generate
from hexane.emit.c99_check import why_refused
from hexane.emit.plan_view import supported
from hexane.errors import Error
from hexane.runtime.c99 import C99Model
from hexane.system.c99_library import own_library, row_kernels
from plans import PlanBuilder

Layer = Callable[[hx.Tensor], hx.Tensor]
WEIGHT = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)

# On images with channels last; the C99 runtime computes none of them row by row.
WHOLE: dict[str, Layer] = {
    "layer_norm": partial(hx.layer_norm, axes=(3,)),
    "rms_norm": partial(hx.rms_norm, axes=(3,)),
    "linear": lambda x: hx.linear(x, WEIGHT),
    "softmax of channels": partial(hx.softmax, axis=3),
    "softmax of columns": partial(hx.softmax, axis=2),
    **{
        f"{op} of {name}": partial(getattr(hx, op), axes=axes)
        for op in ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min")
        for name, axes in (("channels", (3,)), ("columns", (2,)), ("both", (2, 3)))
    },
}


def network(layer: Layer) -> dict[str, hx.Tensor]:
    x = hx.input("x", (1, 16, 16, 8))
    return {"y": hx.sigmoid(layer(hx.relu(x)))}


def saved(net: hx.Model | hx.OpenModel, folder: Path) -> bytes:
    assert isinstance(net, hx.Model)
    net.save(folder / "plan.hxp")
    return (folder / "plan.hxp").read_bytes()


def test_the_library_of_the_package_has_the_kernels_of_the_sources() -> None:
    library, found = own_library(), []
    while name := library.hx_shared_kernel(len(found)):
        found.append(name.decode())
    assert found == supported()[0]
    assert {"conv", "quantized_conv", "add", "copy", "running_reduce"} <= row_kernels()
    assert not {"matmul", "softmax", "layer_norm", "reduce_sum"} & row_kernels()


@pytest.mark.parametrize("name", WHOLE)
def test_codegen_refuses_rows_that_the_runtime_does_not_compute(tmp_path: Path, name: str) -> None:
    data = saved(hx.compile(network(WHOLE[name]), target="host", threads=1, memory=hx.Memory(rows=1)), tmp_path)
    with pytest.raises(Error, match=r"steps\[1\]"):
        C99Model(data, own_library())
    with pytest.raises(Error) as raised:
        generate(data, "net", app=True)
    op = name.split()[0]
    kernel = "matmul" if op == "linear" else op
    assert re.match(
        rf"\[codegen\] step 1, {kernel} at test_c99_refusals.py:.*: got {kernel} of fp32\[1, 16, 16, 8\]",
        str(raised.value),
    )
    assert "row by row, need whole tensors" in str(raised.value)
    assert "--runtime c99" in str(raised.value)


@pytest.mark.parametrize("strategy", ["stream", "stages"])
@pytest.mark.parametrize("name", WHOLE)
def test_compile_for_the_runtime_leaves_such_steps_whole(tmp_path: Path, name: str, strategy: str) -> None:
    """Between convolutions, which go row by row in the memory that this takes."""
    weight = np.random.default_rng(1).standard_normal((8, 8, 3, 3)).astype(np.float32)
    x = hx.input("x", (1, 16, 16, 8))
    wide = hx.conv(
        hx.conv(x, np.repeat(weight, 6, 0), pad=1, layout="nhwc"), np.tile(weight, (1, 6, 1, 1)), pad=1, layout="nhwc"
    )
    model = {"y": hx.sigmoid(WHOLE[name](wide))}
    memory = hx.Memory("48K", slow="1M" if strategy == "stages" else 0, strategy=strategy, runtime="c99")
    net = hx.compile(model, target="host", threads=1, memory=memory)
    assert isinstance(net, hx.Model)
    assert net.program is not None
    assert net.program.loops
    feeds = {"x": np.random.default_rng(2).standard_normal((1, 16, 16, 8)).astype(np.float32)}
    data = saved(net, tmp_path)
    assert "net.c" in generate(data, "net", app=True)
    assert np.abs(C99Model(data, own_library())(feeds)["y"] - net(feeds)).max() < 1e-4


def test_where_whole_tensors_do_not_fit_compile_says_what_the_runtime_lacks() -> None:
    """The host has the same network in the same memory row by row."""
    model = {"y": hx.relu(hx.softmax(hx.relu(hx.input("x", (1, 64, 64, 8))), axis=3))}
    streamed = {"stream_input": True, "stream_output": True}
    hx.compile(model, target="host", threads=1, memory=hx.Memory("32K", **streamed))
    for more in ({}, {"slow": 1 << 20, "strategy": "stages"}):
        memory = hx.Memory("32K", runtime="c99", **(more or streamed))
        with pytest.raises(Error, match=r"The C99 runtime computes softmax at .*\(softmax\) as a whole only\."):
            hx.compile(model, target="host", threads=1, memory=memory)


def test_compile_and_fit_for_the_runtime_name_the_step_that_it_does_not_run() -> None:
    """A pool over three axes, of which the runtime has none."""
    model = {"y": hx.max_pool(hx.input("x", (1, 2, 8, 8, 8)), kernel_sizes=(2, 2, 2), strides=(2, 2, 2))}
    got = r"step \d, max_pool at test_c99_refusals.py:\d+: got max_pool of .*, need images of rank 3 or 4"
    for runtime in ("c99", "cmsis-nn"):
        with pytest.raises(Error, match=rf"\[compile\] runtime: got '{runtime}': {got}"):
            hx.compile(model, target="host", memory=hx.Memory(runtime=runtime))
    fit = hx.fit(model, memory=hx.Memory("1M", runtime="c99"))
    assert fit.fits is False
    assert re.match(f"does not run on the C99 runtime: {got}", fit.verdict)
    assert hx.fit(model, memory=hx.Memory("1M")).fits


def test_a_plan_for_a_chip_is_refused_with_the_way_out(tmp_path: Path) -> None:
    data = saved(hx.compile({"y": hx.relu(hx.input("x", (1, 8, 4, 4)))}, target="h13", device="cpu"), tmp_path)
    with pytest.raises(Error, match=r"\[codegen\] .*got .*need .*; it is for h13: .*--target host"):
        generate(data, "net", app=True)


def test_a_step_without_a_source_is_named_by_its_kernel() -> None:
    plan = PlanBuilder()
    x, y = plan.port("inputs", "x", (4,)), plan.port("outputs", "y", (4,))
    plan.step("atan", [x], [y])
    sections = {name: np.array(rows) for name, rows in _core.plan_read(np.frombuffer(plan.tobytes(), np.uint8)).items()}
    sections["steps"]["source"] = 0
    with pytest.raises(Error, match=r"^\[codegen\] step 0, atan: got the kernel atan, which"):
        generate(bytes(_core.plan_write(sections)), "net", app=True)


def test_a_kernel_that_the_runtime_has_not_got_is_named_by_its_layer(tmp_path: Path) -> None:
    """By codegen as by compile, though the plan that codegen writes has no names of layers."""
    model = {"y": hx.atan(hx.relu(hx.input("x", (1, 128))))}
    named = r"step \d, atan at test_c99_refusals.py:\d+: got the kernel atan, which"
    with pytest.raises(Error, match=rf"^\[codegen\] {named}"):
        generate(saved(hx.compile(model, target="host"), tmp_path), "net", app=True)
    with pytest.raises(Error, match=rf"^\[compile\] runtime: got 'c99': {named}"):
        hx.compile(model, target="host", memory=hx.Memory(runtime="c99"))


def test_a_kernel_that_compile_writes_out_for_the_runtime_says_so(tmp_path: Path) -> None:
    values, indices = hx.topk(hx.input("x", (1, 128)), k=3, axis=1)
    model = {"values": values, "indices": indices}
    with pytest.raises(Error, match=r"^\[codegen\] step 0, topk .* --runtime c99 .*, which writes it as other ops$"):
        generate(saved(hx.compile(model, target="host"), tmp_path), "net", app=True)
    generate(saved(hx.compile(model, target="host", memory=hx.Memory(runtime="c99")), tmp_path), "net", app=True)


def test_a_dtype_that_the_runtime_has_not_got_names_the_step() -> None:
    plan = PlanBuilder()
    x, y = plan.port("inputs", "x", (4,), "bf16"), plan.port("outputs", "y", (4,), "bf16")
    plan.step("copy", [x], [y])
    with pytest.raises(
        Error, match=r"^\[codegen\] step 0, copy at step 0: got copy of bf16\[4\] -> bf16\[4\] \(bf16\), which .*need"
    ):
        generate(bytes(plan.tobytes()), "net", app=True)
    assert "bf16" in why_refused(bytes(plan.tobytes()))
