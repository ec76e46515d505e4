"""Writes layers as task descriptors of version 7: one task per layer, with the fields whose meaning is published.

Fields of unknown meaning are 0, and the task lists the omitted parts of the layer. Constants are copied from programs
for M1 (docs/descriptors.md).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from hexane import _core
from hexane.containers.task_descriptor import VERSION, TaskDescriptor, encode_descriptor, link_descriptors
from hexane.errors import UnsupportedError
from hexane.graph import Node, TensorType
from hexane.program.layers import Layer, slot_text
from hexane.program.partitions import Stay, Tensor
from hexane.stages.engine.place_layers import PlacedLayers
from hexane.stages.engine.schedule_layers import LayerSchedule
from hexane.targets import Chip
from hexane.targets.descriptor_fields import descriptor_fields

FORMATS = {"uint8": 0, "int8": 1, "fp16": 2}  # Source: tinygrad, README.old.
WEIGHTS_BAR, INTERMEDIATE_BAR, FIRST_BAR, NUM_BARS = 1, 3, 4, 32  # Source: eiln/ane; bar 0 has the tasks.
GRAIN = 64  # Bytes; strides and addresses of main memory are multiples of it.
ONE_FP16, ONE_FP32 = 0x3C00, 0x3F800000
_PLANAR = {"anec.add": 0, "anec.mul": 1}
_NONLINEAR = {"relu": 1, "sigmoid": 2, "sigmoid_high_precision": 2}  # allbilly/ane; tinygrad, lib/ane.py
_MAC = "multiply-accumulate"


@dataclass(frozen=True, slots=True)
class Task:
    """The descriptor of a layer. left_out: the parts of the layer without a published field, or beyond a field's
    range."""

    layer: int
    name: str
    kind: str
    descriptor: TaskDescriptor
    left_out: tuple[str, ...]


def emit_descriptors(scheduled: LayerSchedule, placed: PlacedLayers, chip: Chip) -> tuple[Task, ...]:
    """Returns the linked tasks of one segment. placed: its last layers are the segment's. Raises
    UnsupportedError for a chip with another descriptor version."""
    if chip.descriptor != VERSION:
        version = "an unknown version" if chip.descriptor is None else f"version {chip.descriptor}"
        raise UnsupportedError(
            f"[descriptors] {chip.label}: got task descriptors of {version}, need version {VERSION}, as h13 has: no"
            " source publishes both the fields and the layout of another version"
        )
    nodes = scheduled.problem.layers
    layers = placed.layers[len(placed.layers) - len(nodes) :]
    bars = dict(_bars(layers, placed.tensors))
    tasks = [_Task(node, layer, placed, bars, chip) for node, layer in zip(nodes, layers, strict=True)]
    linked = link_descriptors([encode_descriptor(task.values) for task in tasks])
    return tuple(
        Task(task.layer.index, task.layer.name, task.layer.kind, descriptor, tuple(task.left_out))
        for task, descriptor in zip(tasks, linked, strict=True)
    )


def _bars(layers: tuple[Layer, ...], tensors: tuple[Tensor, ...]) -> Iterator[tuple[int, int]]:
    """Yields (tensor, base address register) of the segment's ports, results before inputs."""
    mine = {t for layer in layers for t in (*layer.makes, *layer.reads)}
    numbers = count(FIRST_BAR)
    for wanted in (True, False):
        for tensor in sorted(mine):
            t = tensors[tensor]
            if (t.producer is not None and t.kept) if wanted else t.producer is None:
                yield tensor, next(numbers)


class _Task:
    def __init__(self, node: Node, layer: Layer, placed: PlacedLayers, bars: dict[int, int], chip: Chip) -> None:
        self.node, self.layer, self.placed, self.bars, self.chip = node, layer, placed, bars, chip
        self.values: dict[str, int] = {}
        self.left_out: list[str] = []
        self.on_array = layer.engine == "NE" or node.op == "anec.neuron"  # M1's programs do this on the MAC array
        self.most = {f.path: f.most for f in descriptor_fields(VERSION) if f.status != "disputed"}
        self.put("header.Header0.TID", layer.index)
        self.put("common.TaskInfo.TaskID", layer.index)
        self.geometry()
        self.sources()
        self.result()
        if self.on_array:
            self.multiply_accumulate()
        elif layer.engine == "PE" and node.op in _PLANAR:
            self.planar()
        else:
            self.left_out.append(f"the operation: no source publishes how {_operation(node.op)} is coded")

    def put(self, path: str, value: int) -> None:
        if 0 <= value <= self.most[path]:
            self.values[path] = value
        else:
            self.left_out.append(f"{path}: {value} exceeds {self.most[path]}")

    def geometry(self) -> None:
        first = self.placed.tensors[self.layer.reads[0]].type if self.layer.reads else self.node.types[0]
        for kind, ends, depth, form, names in (
            (first, ("InDim.Win", "InDim.Hin", "Cin.Cin"), "InDepth", "InFmt", "input"),
            (self.node.types[0], ("OutDim.Wout", "OutDim.Hout", "Cout.Cout"), "OutDepth", "OutFmt", "result"),
        ):
            _, channels, deep, height, width = _five(kind)
            for name, value in zip(ends, (width, height, channels), strict=True):
                self.put(f"common.{name}", value)
            self.put(f"common.{depth}", deep)
            if kind.dtype.name in FORMATS:
                self.put(f"common.ChCfg.{form}", FORMATS[kind.dtype.name])
            else:
                self.left_out.append(f"the format of the {names}: no code of {kind.dtype.name} is published")
        attrs = self.node.attrs
        kernel, strides = attrs.get("kernel_sizes", (1, 1)), attrs.get("strides", (1, 1))
        pads = attrs.get("explicit_padding", (0, 0, 0, 0))
        if self.layer.engine == "PE" and self.node.op not in _PLANAR:
            kernel, strides, pads = (1, 1), (1, 1), (0, 0, 0, 0)
        if len(kernel) != 2 or max(attrs.get("dilation_rates", (1,))) > 1:
            self.left_out.append("the kernel: no field says a depth or a dilation")
            kernel, strides, pads = (1, 1), (1, 1), (0, 0, 0, 0)
        for name, value in zip(
            ("Kh", "Kw", "Sy", "Sx", "Py", "Px"), (*kernel, *strides, pads[0], pads[2]), strict=True
        ):
            self.put(f"common.ConvCfg.{name}", value)
        self.put("common.ConvCfg.Ox", 1)
        self.put("common.ConvCfg.Oy", 1)
        groups = int(attrs.get("groups", 1))
        self.put("common.GroupConvCfg.NumGroups", groups)
        if groups == 1:
            self.put("common.GroupConvCfg.UnicastCin", 1)
        else:
            self.left_out.append("the inputs of each group: no published program has groups")

    def sources(self) -> None:
        read = [self.placed.tensors[t] for t in self.layer.reads]
        if len(read) > 1:
            self.left_out.append("sources after the first: no published field has their formats and strides")
        for place, tensor in enumerate(read[:2]):
            stay = _stay(tensor, self.layer)
            if stay is None or not self.loads(tensor, stay):
                continue
            self.put(f"header.Header8.RBase{place}", self.bar(tensor))
            self.put(f"header.Header8.RBE{place}", 1)
            if place == 0:
                self.put("source.DMAConfig.En", 1)
                for name, value in (("CacheHint", 2), ("CacheHintReuse", 14), ("CacheHintNoReuse", 12)):
                    self.put(f"source.DMAConfig.{name}", value)
                self.transfer("source", tensor, ("RowStride.Stride", "PlaneStride.PlaneStride", "DepthStride.Stride"))
        if read and (stay := _stay(read[0], self.layer)) is not None:
            self.on_chip(read[0], stay, "Source", ("SourceChannelStride.Stride", "SourceRowStride.Stride"))

    def result(self) -> None:
        tensors = [self.placed.tensors[t] for t in self.layer.makes]
        if len(tensors) != 1:
            self.left_out.append(f"{len(tensors)} results: no published field has more than one")
        for tensor in tensors[:1]:
            stay = _stay(tensor, self.layer)
            if stay is None or stay.spilled or tensor.kept or len(tensor.stays) > 1:
                self.put("header.Header8.WBase", self.bar(tensor))
                self.put("header.Header8.WBE", 1)
                self.put("destination.DMAConfig.En", 1)
                self.put("destination.DMAConfig.CacheHint", 3)
                names = ("RowStride.RowStride", "PlaneStride.PlaneStride", "DepthStride.DepthStride")
                self.transfer("destination", tensor, names)
                if self.on_array:
                    self.put("destination.Fmt.ZeroPadFirst", 1)
                    self.put("destination.Fmt.ZeroPadLast", 1)
            if stay is not None:
                stride_names = ("ConvResultChannelStride.Stride", "ConvResultRowStride.Stride")
                self.on_chip(tensor, stay, "Result", stride_names if self.node.op == "anec.convolution" else ())

    def loads(self, tensor: Tensor, stay: Stay) -> bool:
        here = tensor.producer is not None and self.placed.layers[tensor.producer].partition == self.layer.partition
        return stay.spilled or (not here and stay.first == self.layer.index)

    def bar(self, tensor: Tensor) -> int:
        number = self.bars.get(tensor.index)
        if number is None:
            self.left_out.append(f"the address of {tensor.name} among the intermediates")
            return INTERMEDIATE_BAR
        if number >= NUM_BARS:
            self.left_out.append(f"the base address of {tensor.name}: there are {NUM_BARS} registers")
            return 0
        return number

    def transfer(self, block: str, tensor: Tensor, strides: tuple[str, str, str]) -> None:
        kind, memory = tensor.type, self.chip.memory
        batch, channels, deep, height, width = _five(kind)
        row_bytes = -(-width * kind.dtype.bits // 8)
        row, plane, _ = _core.main_memory_pitch(
            row_bytes, height, batch * channels * deep, memory.row_alignment, memory.page
        )
        for name, value in zip(strides, (row, plane, plane * channels), strict=True):
            if value % GRAIN:
                self.left_out.append(f"{block}.{name}: {value} is no multiple of {GRAIN}")
            else:
                self.put(f"{block}.{name}", value // GRAIN)
        if batch > 1:
            self.left_out.append(f"{block}: the stride of a batch, which no published program has")
        if kind.dtype.name != "fp16":
            self.left_out.append(f"{block}.Fmt: published for fp16 alone")
            return
        for name, value in (("FmtMode", 1), ("Truncate", 3), ("MemFmt", 2), ("Interleave", 1)):
            self.put(f"{block}.Fmt.{name}", value)

    def on_chip(self, tensor: Tensor, stay: Stay, side: str, strides: tuple[str, ...]) -> None:
        """Writes the plan's address of the tensor in on-chip memory. It also writes the program's strides; a row of all
        channels is contiguous. Only convolutions write the strides of a result."""
        at = stay.offsets[stay.touches.index(self.layer.index)] if stay.spilled else stay.offsets[0]
        distances = (tensor.stride, tensor.stride * _five(tensor.type)[1])
        values = {f"{side}Base.Addr": at} | dict(zip(strides, distances, strict=False))
        for name, value in values.items():
            if value % 16:
                self.left_out.append(f"L2.{name}: {value} is no multiple of 16")
            else:
                self.put(f"L2.{name}", value // 16)
        if tensor.type.dtype.name == "fp16":
            for name, value in ((f"{side}Type", 2), ("DMAFmt", 1), ("DMAInterleave", 1)):
                self.put(f"L2.{side}Cfg.{name}", value)

    def planar(self) -> None:
        self.put("planar.Cfg.OpMode", _PLANAR[self.node.op])
        self.put("planar.Cfg.SecSrc", 2)
        self.put("planar.BiasScale.Scale", ONE_FP16)
        self.put("planar.FinalScale.FinalScale", ONE_FP32)
        self.left_out += [f"the slot {slot_text(slot)}" for slot in self.layer.slots]

    def multiply_accumulate(self) -> None:
        weights, op = self.layer.weights, self.node.op
        self.put("common.Cfg.AccDoubleBufEn", 1)
        self.put(f"{_MAC}.PostScale.PostScale", ONE_FP16)
        for i in range(16):
            self.put(f"kernel.CoeffDMAConfig[{i}].CacheHint", 2)
            self.put(f"kernel.CoeffBfrSize[{i}].MemBfrSize", 1)
        bits = 8
        if op == "anec.neuron":
            self.put("common.GroupConvCfg.UnicastEn", 1)
            self.put(f"{_MAC}.MACCfg.OpMode", 4)
            self.put(f"{_MAC}.MACCfg.KernelMode", 1)
            self.nonlinear(str(self.node.attrs["mode"]))
        elif op != "anec.convolution" or weights is None:
            self.left_out.append(f"the operation: no source publishes how {_operation(op)} is coded")
        else:
            self.left_out.append("the binary point: tables disagree about its bits")
            if weights.encoding == "fp16":
                self.put(f"{_MAC}.KernelCfg.KernelFmt", 2)
            elif weights.encoding == "palette":
                self.put(f"{_MAC}.KernelCfg.PalettizedEn", 1)
                bits = weights.bits
                self.left_out.append("the place of the palette")
            else:
                self.left_out.append(f"the format of weights: none is published for {weights.encoding}")
            self.kernel(weights.engines, weights.packed_bytes)
            for slot in self.node.attrs["epilogue"]:
                mode = dict(slot.attributes).get("mode")
                if slot.op == "post_activation" and mode is not None:
                    self.nonlinear(str(mode))
                else:
                    self.left_out.append(f"the slot {slot_text(str(slot))}")
        self.put(f"{_MAC}.KernelCfg.PalettizedBits", bits)

    def kernel(self, engines: int, size: int) -> None:
        self.put("header.Header9.KBase0", WEIGHTS_BAR)
        self.put("header.Header9.KBE0", 1)
        each = size // engines
        if each * engines != size or each % GRAIN or engines > 16:
            self.left_out.append(
                f"the kernel's addresses: {size} bytes of {engines} engines are no whole {GRAIN} bytes"
            )
            return
        for i in range(engines):
            self.put(f"kernel.CoeffDMAConfig[{i}].En", 1)
            self.put(f"kernel.CoeffBaseAddr[{i}].Addr", i * each // GRAIN)
            self.put(f"kernel.CoeffBfrSize[{i}].MemBfrSize", each // GRAIN)

    def nonlinear(self, mode: str) -> None:
        if mode not in _NONLINEAR:
            self.left_out.append(f"the activation: no source publishes how {mode} is coded")
            return
        self.put(f"{_MAC}.MACCfg.NonlinearMode", _NONLINEAR[mode])
        if mode != "relu":
            self.left_out.append(f"the look-up table of {mode}")


def _operation(op: str) -> str:
    """Returns an op of the engine in words: a deconvolution. Several ops share the netplist's layer Conv."""
    words = op.removeprefix("anec.").replace("_", " ")
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _stay(tensor: Tensor, layer: Layer) -> Stay | None:
    return next((s for s in tensor.stays if s.partition == layer.partition), None)


def _five(kind: TensorType) -> tuple[int, int, int, int, int]:
    """Returns batch, channels, depth, height and width. Several batch axes are merged."""
    shape = (1,) * (4 - kind.rank) + kind.shape
    if len(shape) == 4:
        return shape[0], shape[1], 1, shape[2], shape[3]
    batch = 1
    for extent in shape[:-4]:
        batch *= extent
    channels, deep, height, width = shape[-4:]
    return batch, channels, deep, height, width
