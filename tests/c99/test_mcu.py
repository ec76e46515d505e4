"""Generated apps on Cortex-M under QEMU, in the memory of a common part: outputs beside the host's, and sizes. `make
test-mcu`."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from test_c99_known_networks import NETWORKS, assert_outputs, on_a_device, write_files
from test_c99_promises import plan_of

import hexane as hx
from c99_apps import write_app
from hexane.emit.c99 import generate
from hexane.emit.prepare import prepared
from hexane.planning.flash import flash_of
from qdq import quantized_model
from small_devices import SMALL_DEVICE_NETWORKS
from symmetric import symmetric

TOOLS = ("arm-none-eabi-gcc", "qemu-system-arm", "make")
missing = [tool for tool in TOOLS if shutil.which(tool) is None]
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing), reason=f"not there: {', '.join(missing)}")]

BOARDS = {"cortex-m4": "mps2-an386", "cortex-m7": "mps2-an500", "cortex-m55": "mps3-an547"}
FLASH, RAM = 512 << 10, 256 << 10  # bytes of the part; the linker refuses what does not fit
BENCHMARKS = ("ds_cnn", "resnet8", "mobilenet_v1_025_96")
Q31 = ("ds_cnn", "resnet8")  # in TFLite's arithmetic too
ULP_OF_SOFTMAX = 2e-6  # relative: a network of these ends with one


def model_of(name: str, model_file) -> bytes:
    if name in SMALL_DEVICE_NETWORKS:
        return SMALL_DEVICE_NETWORKS[name]()
    source = onnx.load(model_file(name))
    port = source.graph.input[0]
    shape = [d.dim_value for d in port.type.tensor_type.shape.dim]
    return quantized_model(source, {port.name: np.random.default_rng(1).standard_normal(shape).astype(np.float32)})


def run_on_board(folder: Path, core: str, *options: str, ram: int = RAM) -> dict[str, int]:
    """Builds and runs the app in the folder; the sizes of its program in bytes."""
    memory = (f"FLASH_BYTES={FLASH}", f"RAM_BYTES={ram}")
    subprocess.run(["make", "-s", "-B", "-C", folder, f"TARGET={core}", *memory, *options], check=True)
    command = ["qemu-system-arm", "-M", BOARDS[core], "-nographic", "-kernel", "net.elf"]
    semihosting = ["-semihosting-config", "enable=on,target=native"]
    ran = subprocess.run([*command, *semihosting], cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    sizes = subprocess.run(["arm-none-eabi-size", folder / "net.elf"], check=True, capture_output=True, text=True)
    head, row = sizes.stdout.splitlines()
    return dict(zip(head.split()[:3], map(int, row.split()[:3]), strict=True))


@pytest.mark.parametrize("core", BOARDS)
@pytest.mark.parametrize(
    ("name", "numerics"),
    [*((name, "") for name in (*SMALL_DEVICE_NETWORKS, *BENCHMARKS)), *((name, "q31") for name in Q31)],
)
def test_an_int8_network_on_a_microcontroller(name, numerics, core, tmp_path, model_file, capsys):
    net = hx.compile(model_of(name, model_file), target="host", threads=1, memory=hx.Memory(rows=1), numerics=numerics)
    net.save(tmp_path / "net.hxp")
    plan = (tmp_path / "net.hxp").read_bytes()
    for place, text in generate(plan, "net", app=True).items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text)
    port = net.inputs[0]
    x = np.random.default_rng(0).standard_normal(port.shape).astype(np.float32)
    (tmp_path / "input.bin").write_bytes(x.tobytes())
    need = net(x)
    for options in ((), ("VERIFY=0",)):
        sizes = run_on_board(tmp_path, core, *options)
        got = np.frombuffer((tmp_path / "output.bin").read_bytes(), need.dtype).reshape(need.shape)
        if any(step.kernel == "softmax" for step in net.program.steps):
            np.testing.assert_allclose(got, need, rtol=ULP_OF_SOFTMAX)
        else:
            assert got.tobytes() == need.tobytes()
        with capsys.disabled():
            code, kind = sizes["text"] - len(prepared(plan)), "without verification" if options else "whole"
            print(
                f"\n{name} {numerics} {core}, {kind}: text {sizes['text']:,}, data {sizes['data']:,}, bss"
                f" {sizes['bss']:,}",
                end="",
            )
            print(f"; plan {len(prepared(plan)):,}, code {code:,}", end="")
        if core == "cortex-m4":
            assert code <= flash_of(net.program).code, "what `fit` says is an upper estimate"


STACK = 6 << 10
STREAMED = {"ds_cnn": 12 << 10, "mobilenet_v1_025_96": 22 << 10}  # bytes of RAM, stack included


@pytest.mark.parametrize("core", BOARDS)
@pytest.mark.parametrize("name", STREAMED)
def test_an_input_that_does_not_fit_the_ram_comes_row_by_row(name, core, tmp_path, model_file, capsys):
    """With the input whole the app takes more RAM than there is here."""
    whole = hx.compile(model_of(name, model_file), target="host", threads=1, memory=hx.Memory(rows=1))
    net = hx.compile(
        model_of(name, model_file),
        target="host",
        threads=1,
        memory=hx.Memory(rows=1, stream_input=True, stream_output=True),
    )
    net.save(tmp_path / "net.hxp")
    plan = (tmp_path / "net.hxp").read_bytes()
    for place, text in generate(plan, "net", app=True).items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text)
    port = net.inputs[0]
    input_bytes = 4 * int(np.prod(port.shape))
    assert whole.memory["arena"] + input_bytes + STACK > STREAMED[name]
    x = np.random.default_rng(0).standard_normal(port.shape).astype(np.float32)
    (tmp_path / "input.bin").write_bytes(x.transpose(0, 2, 3, 1).tobytes())
    sizes = run_on_board(tmp_path, core, ram=STREAMED[name])
    need = net(x)
    assert need.tobytes() == whole(x).tobytes()
    assert (tmp_path / "output.bin").read_bytes() == need.tobytes()
    ram = sizes["data"] + sizes["bss"]
    with capsys.disabled():
        print(
            f"\n{name} {core}, input and output streamed: RAM {ram:,} of {STREAMED[name]:,}, of it {STACK:,} of stack",
            end="",
        )
        print(f" and {net.memory['arena']:,} of arena; the input alone has {input_bytes:,}", end="")
    if core == "cortex-m4":
        assert sizes["text"] - len(plan) <= flash_of(net.program).code


@pytest.mark.parametrize("core", BOARDS)
@pytest.mark.parametrize("rows", [0, 1])
def test_an_app_with_a_double_of_cmsis_nn_on_a_microcontroller(tmp_path, rows, core):
    """The double of tests/c99/cmsis_nn, for CMSIS-NN itself is not there: its sizes and times say nothing."""
    source = symmetric(SMALL_DEVICE_NETWORKS["residual"]())
    net = hx.compile(source, target="host", threads=1, memory=hx.Memory(rows=rows), numerics="q31")
    write_app(net, tmp_path, cmsis_nn=True)
    x = np.random.default_rng(0).standard_normal(net.inputs[0].shape).astype(np.float32)
    (tmp_path / "input.bin").write_bytes(x.tobytes())
    run_on_board(tmp_path, core, f"CMSIS_NN={Path(__file__).parent / 'cmsis_nn'}")
    assert (tmp_path / "output.bin").read_bytes() == net(x).tobytes()


@pytest.mark.parametrize("core", BOARDS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_known_network_on_a_microcontroller(name, core, tmp_path):
    """In fp32, with integers and indices."""
    net, feeds, need = on_a_device(name)
    write_files(tmp_path, net, feeds)
    sizes = run_on_board(tmp_path, core)
    assert_outputs(tmp_path, net, need)
    if core == "cortex-m4":
        code = sizes["text"] - len(prepared(plan_of(net)))
        assert code <= flash_of(net.program).code, "what `fit` says is an upper estimate"
