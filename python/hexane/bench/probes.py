"""Configurations to measure, by probe, and benchmark programs with published figures."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from hexane.errors import Error

Device = Literal["cpu", "ane"]
Mode = Literal["bound", "call", "idle", "threads"]


@dataclass(frozen=True, slots=True)
class Configuration:
    """A network and a way to call it, which are measured in a process of their own.

    mode: bound (NumPy buffers bound once), call (arrays given and returned), idle (bound, half a second after the
    previous call), threads (that many programs at once, one thread each). qos: the priority class of the Neural
    Engine's queues.
    """

    probe: str
    name: str
    network: str
    sizes: dict[str, int]
    dtype: str = "fp16"
    mode: Mode = "bound"
    threads: int = 1
    qos: int | None = None
    side: str = ""  # in an SRAM probe, the bytes that grow: weights or activations


def configurations(probe: str, device: Device) -> list[Configuration]:
    """The configurations of a probe; "all" stands for every probe of the device. Raises Error for an unknown
    name."""
    if probe == "all":
        return [c for name in PROBES if device == "ane" or name not in ANE_ONLY for c in PROBES[name](device)]
    make = PROBES.get(probe) or PUBLISHED.get(probe)
    if make is None:
        raise Error(f"[bench] got the probe {probe!r}, need one of: {', '.join((*PROBES, 'all', *PUBLISHED))}")
    if device != "ane" and probe in ANE_ONLY:
        raise Error(f"[bench] {probe}: got the device {device}, need ane: only the Neural Engine's queues have classes")
    return list(make(device))


def _conv(
    probe: str, channels: int, depth: int, height: int, width: int, dtype: str = "fp16", side: str = ""
) -> Configuration:
    name = f"conv {channels}x{depth} {height}x{width}"
    sizes = {"channels": channels, "depth": depth, "height": height, "width": width}
    return Configuration(probe, name, "conv_chain", sizes, dtype, side=side)


def _dispatch(device: Device) -> Iterator[Configuration]:
    """The cost of a call with no or little work, also when the device was idle before."""
    small = {"elements": 64}
    yield Configuration("dispatch", "bound call", "relu", small)
    yield Configuration("dispatch", "call", "relu", small, mode="call")
    yield Configuration("dispatch", "bound call, fp32 ports", "relu", small, dtype="fp32")
    yield Configuration("dispatch", "bound call, after 0.5 s idle", "relu", small, mode="idle")
    yield _conv("dispatch", 256, 1, 1, 64)


def _threads(device: Device) -> Iterator[Configuration]:
    """The cost of a call while other threads call their own programs: one without work, and one that computes."""
    chain = {"channels": 256, "depth": 8, "height": 1, "width": 64}
    for network, sizes in (("relu", {"elements": 64}), ("conv_chain", chain)):
        for threads in (1, 2, 4, 8):
            what = "relu 64" if network == "relu" else "conv 256x8 1x64"
            name = f"{what}, {threads} at once" if threads > 1 else f"{what}, alone"
            yield Configuration("threads", name, network, sizes, _dtype(device), "threads", threads)


def _peak(device: Device) -> Iterator[Configuration]:
    dtype = _dtype(device)
    depths, areas = ((32, 64, 128), (64, 1024, 4096)) if device == "ane" else ((8, 32), (64, 1024))
    for channels in (256, 384, 512):
        for depth in depths:
            for area in areas:
                height = max(1, area // 64)
                yield _conv("peak", channels, depth, height, 64, dtype=dtype)
    for channels, depth, height in (
        ((64, 32, 64), (128, 32, 64), (256, 32, 32), (256, 32, 64), (512, 16, 32))
        if device == "ane"
        else ((64, 8, 16), (128, 8, 16), (256, 4, 16))
    ):
        sizes = {"channels": channels, "depth": depth, "height": height, "width": 64, "kernel": 3}
        yield Configuration("peak", f"conv3x3 {channels}x{depth} {height}x64", "conv_chain", sizes, dtype)
    for size in (512, 1024, 2048, 4096) if device == "ane" else (256, 512, 1024):
        sizes = {"rows": size, "inner": size, "columns": size}
        yield Configuration("peak", f"gemm {size}", "gemm", sizes, dtype=dtype)


def _sram(device: Device) -> Iterator[Configuration]:
    """Time against bytes. Beyond the size of the memory near the units, the line is steeper.

    On a CPU a product with one column reads each weight once, and an addition each number once, so the sizes of its
    caches are the cliffs.
    """
    dtype = _dtype(device)
    width = 64 if device == "ane" else 1
    for channels in _geometric(128, 8192 if device == "ane" else 4096, 24, 64):
        yield _conv("sram", channels, 1, 1, width, dtype=dtype, side="weights")
    if device == "ane":
        for height in _geometric(4, 4096, 24, 1):
            yield _conv("sram", 64, 4, height, 64, dtype=dtype, side="activations")
    else:
        for elements in _geometric(1 << 12, 1 << 24, 24, 64):
            sizes = {"elements": elements}
            yield Configuration("sram", f"add {elements}", "add", sizes, dtype=dtype, side="activations")


def _io(device: Device) -> Iterator[Configuration]:
    """The cost of moving inputs and outputs: arrays given and returned, compared with bound buffers."""
    modes: tuple[Mode, ...] = ("bound", "call")
    for elements in (1 << 12, 1 << 16, 768 * 256, 1 << 20):
        for dtype in ("fp16", "fp32"):
            for mode in modes:
                yield Configuration(
                    "io", f"relu {elements} {dtype} {mode}", "relu", {"elements": elements}, dtype, mode
                )


def _qos(
    device: Device, classes: tuple[int, ...] = (0, 9, 17, 21, 25, 33), probe: str = "qos"
) -> Iterator[Configuration]:
    for qos in classes:
        sizes = {"channels": 256, "depth": 1, "height": 1, "width": 64}
        yield Configuration(probe, f"conv 256x1, QoS {qos}", "conv_chain", sizes, qos=qos)


def _int8(device: Device) -> Iterator[Configuration]:
    chains = ((512, 128), (512, 64), (256, 256), (256, 128), (384, 128)) if device == "ane" else ((256, 8), (512, 8))
    side = 64 if device == "ane" else 16
    for channels, depth in chains:
        yield from _pair("int8", device, channels, depth, side)


def _pair(probe: str, device: Device, channels: int, depth: int, side: int) -> Iterator[Configuration]:
    sizes = {"channels": channels, "depth": depth, "height": side, "width": side}
    for network in ("conv_chain", "int8_chain"):
        name = f"{'conv' if network == 'conv_chain' else 'int8'} {channels}x{depth} {side}x{side}"
        yield Configuration(probe, name, network, sizes, _dtype(device))


PROBES: dict[str, Callable[[Device], Iterator[Configuration]]] = {
    "dispatch": _dispatch,
    "threads": _threads,
    "peak": _peak,
    "sram": _sram,
    "io": _io,
    "qos": _qos,
    "int8": _int8,
}
ANE_ONLY = ("qos", "test_qos_sweep")

# ---- the configurations of the programs in maderix/ANE, under their names, but each layer has its own weights ----


def _single(
    probe: str, widths: tuple[int, ...], last: tuple[int, ...] = ()
) -> Callable[[Device], Iterator[Configuration]]:
    """A probe of one convolution for each number of channels, with 64 positions (32 for `last`) and fp32 ports."""

    def configured(device: Device) -> Iterator[Configuration]:
        for channels in (*widths, *last):
            yield _conv(probe, channels, 1, 1, 32 if channels in last else 64, dtype="fp32", side="weights")

    return configured


def _inmem_peak(device: Device) -> Iterator[Configuration]:
    for channels, depths in ((512, (32, 48, 64, 96, 128)), (256, (64, 128, 256)), (384, (64, 128))):
        for depth in depths:
            yield _conv("inmem_peak", channels, depth, 1, 64, dtype="fp32")


def _ane_int8_bench(device: Device) -> Iterator[Configuration]:
    for channels, depth in ((512, 128), (512, 64), (256, 256), (256, 128), (384, 128)):
        yield from _pair("ane_int8_bench", device, channels, depth, 64)


_SWEPT = (0, 1, 5, 10, 15, 17, 19, 21, 25, 31, 33, 40, 47, 50, 55, 60, 63)
_PROBED = (256, 512, 1024, 1536, 2048, 2560, 3072, 3584, 4096, 4608, 5120, 6144)
PUBLISHED: dict[str, Callable[[Device], Iterator[Configuration]]] = {
    "inmem_bench": _single("inmem_bench", (256, 512, 1024, 2048, 3072, 4096)),
    "inmem_peak": _inmem_peak,
    "sram_bench": _single("sram_bench", (256, 512, 1024, 2048, 3072, 4096, 5120, 6144), (8192,)),
    "sram_probe": _single("sram_probe", _PROBED, (8192,)),
    "ane_int8_bench": _ane_int8_bench,
    "test_qos_sweep": lambda device: _qos(device, _SWEPT, "test_qos_sweep"),
}


def _dtype(device: Device) -> str:
    """The fastest dtype of a device: engines compute only in fp16, and the units of a CPU are made for fp32."""
    return "fp16" if device == "ane" else "fp32"


def _geometric(first: int, last: int, count: int, multiple: int) -> list[int]:
    """About `count` numbers from first to last in a geometric sequence, rounded to a multiple."""
    factor = (last / first) ** (1 / (count - 1))
    return sorted({round(first * factor**i / multiple) * multiple for i in range(count)})
