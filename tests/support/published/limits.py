"""Tables with a column for each generation: per_tier_limits, family_limits, hal_scalars and hal_capability_bytes."""

import re
from pathlib import Path
from typing import Any

from hexane import targets
from hexane.targets import Fact
from published.cell import BLANK, Cell, Cells, of_chip, rows, unread

H16 = ("h16", "h16g", "h16s", "h16c")
H17 = ("h17", "h17a", "h17g", "h17s", "h17c", "h17d")
OLDER, A13 = ("h11", "h12", "m9", "t0"), ("h13", "h13g", "t1")
A14, A15 = ("h14", "h14g", "h14c"), ("h15", "h15g", "h15c")

# The chips of each column. The tiers are ANEForge's, which count h18 to A16 and m11 to A15.
PER_TIER = {"older": OLDER, "M1_A13": A13, "A14": A14, "A15": A15, "A16_M5": (*H16, *H17, "h18")}
PER_FAMILY = {"A13": A13, "A14": A14, "A15": (*A15, "m11"), "A16": (*H16, *H17, "h18")}
SCALARS = {"older": OLDER, "M1_H13": A13, "A14": A14, "A15": A15, "A16": H16, "A17_M5": H17}
BYTES = {"older": OLDER, "M1_A13": A13, "A14": A14, "A15": A15, "A16": H16, "A17_M5": H17, "H18": ("h18",)}

KERNEL = "extents.kernel_width"
SMALL = "extents.small_kernel_width"
PER_TIER_FIELDS = {
    "max kernel W (default format, large)": (f"{KERNEL}_default",),
    "max kernel W (fp16, large)": (KERNEL,),
    "max kernel W (default, small)": (f"{SMALL}_default",),
    "max kernel W (fp16, small)": (SMALL,),
    "min kernel W (default / fp16, large)": ("extents.min_kernel_width_default", "extents.min_kernel_width"),
    "max kernel H (large / small)": ("extents.kernel_height", "extents.small_kernel_height"),
    "max kernel D (large / small)": ("extents.kernel_depth", "extents.small_kernel_depth"),
    "max patch W / H / D": ("extents.patch_width", "extents.patch_height", "extents.patch_depth"),
    "max tensor W / H": ("extents.width", "extents.height"),
    "max tensor D": ("extents.depth",),
    "max tensor C": ("extents.channels",),
    "max tensor N (batch)": ("extents.batch",),
    "max transpose W / H": ("extents.transpose_width", "extents.transpose_height"),
    "reduction-to-transpose threshold": ("extents.reduction_route",),
    "group-conv decompose limit (Cin·kW·kH)": ("extents.group_decompose",),
    "stride factor list": ("extents.stride_factors",),
    "matmul SRAM working set": ("memory.working_set",),
    "DMA width granule": ("memory.dma_granule",),
    "patch-width floor / max": ("extents.patch_floor", "extents.patch_cap"),
    "instruction alignment": ("memory.instruction_alignment",),
    "has texture engine": ("gates.texture_engine",),
    "kernel-memory budget": ("memory.kernel",),
    "activation-LUT budget": ("memory.activation_table",),
    "context-switch live-tensor limit": ("extents.live_tensors",),
}
FAMILY_FIELDS = {
    "max_tensor_dim": ("extents.width", "extents.height"),
    "channel_extent": ("extents.channels",),
    "transpose_extent": ("extents.transpose_elements",),
    "conv_kw_max": (KERNEL,),
    "reduction_transpose_extent": ("extents.reduction_route",),
    "reduce_route_thresh(HAL 0x3f0)": ("extents.reduction_route",),
    "reduce_square_fuse(HAL 0x494, uniform)": ("gates.square_after_reduction",),
    "texture_engine(HAL 0x81d)": ("gates.texture_engine",),
    "Q4_x16 slice saturation |v|>4094": ("hazards.width_slice_limit",),
}
SCALAR_FIELDS = {
    "0x0c": ("hal.accumulators",),
    "0x70": ("extents.kernel_depth",),
    "0x138": ("extents.width",),
    "0x158": ("extents.depth",),
    "0x1b8": ("memory.working_set",),
    "0x1c0": ("memory.dma_granule",),
    "0x1c8": ("memory.banks",),
    "0x1f0": ("memory.resident_output",),
    "0x1f8": ("memory.destination_stride",),
    "0x200": ("memory.kernel",),
    "0x210": ("memory.streamed_kernel",),
    "0x218": ("memory.instruction_alignment",),
    "0x228": ("hal.cycle_divisor",),
    "0x230": ("hal.accumulator_granule",),
    "0x238": ("hal.num_nes",),
    "0x288": ("hal.extended_kernel_memory",),
    "0x328": ("hal.unicast_channels",),
    "0x338": ("hal.small_source_bound",),
    "0x388/0x390/0x398": ("hal.output_group_bytes",),
    "0x3a8/0x3b0/0x3b8/0x3c0": ("hal.accumulator_channels",),
    "0x3f0": ("extents.reduction_route",),
    "0x3f8": ("hal.pool_patch_clamp",),
    "0x400": ("extents.patch_floor",),
    "0x410": ("extents.patch_cap",),
    "0x468/0x470": ("extents.transpose_height", "extents.transpose_width"),
    "0x580": ("hal.cost_policy",),
    "0x658/0x668": ("hal.interchange_formats",),
    "0x680 bit0": ("gates.winograd",),
    "0x708": ("hal.reflect_padding",),
    "0x730..0x750": ("extents.stride_factors",),
    "0x8b4": ("hal.tile_errata_height",),
}
BYTE_FIELDS = {
    "0x48b": "gates.collective",
    "0x48f": "gates.kernel_streaming",
    "0x491": "gates.resident_output",
    "0x494": "gates.square_after_reduction",
    "0x4a4": "gates.m_class",
    "0x4a8": "gates.pe_work_unit_shape",
    "0x4a9": "gates.dropout_random",
    "0x4ac": "gates.small_source_compression",
    "0x4b0": "gates.odd_work_units",
    "0x4f0": "hal.kernel_layout",
    "0x4f2": "gates.global_arg",
    "0x500": "gates.transpose_multicast",
    "0x520": "gates.secure_cache_hint",
    "0x523,0x533,0x539": "gates.blockwise_stream",
    "0x528,0x532,0x537": "gates.int8_stream",
    "0x529": "gates.palette_stream",
    "0x52c,0x52d,0x52e,0x685": "gates.dma_e4m3",
    "0x54c": "hal.prefetch_interval",
    "0x55c": "gates.cross_die",
    "0x55d": "gates.double_int8",
    "0x563": "gates.fifo_dma",
    "0x564": "gates.multi_die_hazards",
    "0x5a8": "hal.cache_hint",
    "0x687": "gates.multi_die_remote",
    "0x72c": "gates.detect_zeros",
    "0x812": "gates.depth_broadcast",
    "0x814": "gates.dynamic_goc",
    "0x815": "gates.softmax",
    "0x816": "gates.instance_norm",
    "0x818": "gates.min_max_norm",
    "0x81a": "gates.local_response_norm",
    "0x81d": "gates.texture_engine",
    "0x8bc": "gates.chaining",
    "0x8e0": "gates.kernel_caching",
}

# Rows that state nothing that a target's file could have, and why.
NOT_COMPARED = {
    ("hal_scalars", "0x18"): "dead: nothing of the compiler reads it",
    ("hal_scalars", "0x80"): "dead: nothing of the compiler reads it",
    ("hal_scalars", "0x260"): "dead: nothing of the compiler reads it",
    ("hal_scalars", "0x29c"): "dead: nothing of the compiler reads it",
    ("hal_scalars", "0x320"): "dead: nothing of the compiler reads it",
    ("hal_scalars", "0x30/0x38/0x48/0x50"): "per_tier_limits has the same numbers with their names",
    ("hal_scalars", "0x88/0x90/0x98"): "no value published",
    ("hal_scalars", "0x748"): "a pointer",
    ("hal_scalars", "0x75c/0x760/0x778/0x790/0x7a8/0x7b8"): "the tables of clocks have the values",
    ("hal_capability_bytes", "0x820..0x8f8"): "no value published",
}

# Cells that say more than one value: their whole text, and what it says of which chip.
COMPOSITE: dict[tuple[str, str, str], tuple[str, dict[str, Any]]] = {
    ("per_tier_limits", "matmul SRAM working set", "older"): (
        "2 MB, M9 1 MB",
        {"h11": 2097152, "h12": 2097152, "t0": 2097152, "m9": 1048576},
    ),
    ("hal_scalars", "0x1b8", "older"): (
        "2 MB (M9 1 MB)",
        {"h11": 2097152, "h12": 2097152, "t0": 2097152, "m9": 1048576},
    ),
    ("hal_scalars", "0x1c0", "older"): ("16 (1 on small)", {"h11": 16, "h12": 16, "t0": 16, "m9": 1}),
    ("hal_scalars", "0x228", "older"): ("32 (H11) 16 (M9)", {"h11": 32, "m9": 16}),
    ("hal_scalars", "0x238", "older"): ("1-4", {"h11": 4, "m9": 1}),
    # The suffix says the number: base 4, g 8, s 16, c 32, d 64; the table gives the base part's.
    ("hal_scalars", "0x238", "M1_H13"): ("4", {"h13": 4, "h13g": 8, "t1": 4}),
    ("hal_scalars", "0x238", "A14"): ("4", {"h14": 4, "h14g": 8, "h14c": 32}),
    ("hal_scalars", "0x238", "A15"): ("4", {"h15": 4, "h15g": 8, "h15c": 32}),
    ("hal_scalars", "0x238", "A16"): ("4", {"h16": 4, "h16g": 8, "h16s": 16, "h16c": 32}),
    ("hal_scalars", "0x238", "A17_M5"): (
        "16 (h17s col) / 4 (h17)",
        {"h17": 4, "h17a": 4, "h17g": 8, "h17s": 16, "h17c": 32, "h17d": 64},
    ),
    ("hal_capability_bytes", "0x814", "older"): ("0 on smallest legacy", {"m9": 0}),
    ("hal_capability_bytes", "0x4a4", "note"): ("M-class only =1; ch36", {"m9": 1, "m11": 1}),
    ("hal_capability_bytes", "0x55c", "note"): ("M11,U2,U3 set; U1 clear", {"m11": 1, "u1": 0, "u2": 1, "u3": 1}),
    ("hal_scalars", "0x658/0x668", "meaning/consumer"): ("M11 16", {"m11": 16}),
}
WORDS = {"none": None, "∞": None, "yes": True, "no": False, "0, always split": 0, "Simple": "Simple"}
UNITS = {"": 1, "B": 1, "px": 1, "KB": 1024, "MB": 1048576}


def per_tier_limits(folder: Path) -> Cells:
    yield from _columns(folder, "per_tier_limits", "limit", PER_TIER, PER_TIER_FIELDS)


def family_limits(folder: Path) -> Cells:
    yield from _columns(folder, "family_limits", "limit", PER_FAMILY, FAMILY_FIELDS)


def hal_scalars(folder: Path) -> Cells:
    yield from _columns(folder, "hal_scalars", "offset", SCALARS, SCALAR_FIELDS)


def hal_capability_bytes(folder: Path) -> Cells:
    fields = {byte: (path,) for byte, path in BYTE_FIELDS.items()}
    yield from _columns(folder, "hal_capability_bytes", "byte", BYTES, fields)


def _columns(
    folder: Path, table: str, key: str, columns: dict[str, tuple[str, ...]], fields: dict[str, tuple[str, ...]]
) -> Cells:
    for row in rows(folder, table):
        label = row[key]
        if (table, label) in NOT_COMPARED or label == "struct size":
            continue
        if label not in fields:
            raise unread(table, label, label)
        stated = {name for _, said in _composite(table, label).values() for name in said}
        for (_, _, column), (text, said) in _composite(table, label).items():
            if row[column] != text:
                raise unread(table, label, row[column])
            for name, value in said.items():
                for path in fields[label]:
                    yield of_chip(table, label, name, path, value)
        for column, names in columns.items():
            if (table, label, column) in COMPOSITE:
                continue
            values = _values(table, label, row[column], len(fields[label]))
            for path, value in zip(fields[label], values, strict=True):
                for name in names:
                    if value is not BLANK or name not in stated:
                        yield of_chip(table, label, name, path, value)
                        yield from _status(table, label, row.get("status", ""), name, path)


def _status(table: str, label: str, published: str, name: str, path: str) -> Cells:
    """What the guide decoded is not given as measured."""
    fact = targets.fact(name, path)
    if published and fact.source.startswith("guide") and fact.status in ("measured", "decoded"):
        status = Fact(fact.status, fact.source, fact.status, fact.claims)
        most = fact.status if "measured" in published else "decoded"
        yield Cell(table, label, name, f"status of {path}", most, status)


def _composite(table: str, label: str) -> dict[tuple[str, str, str], tuple[str, dict[str, Any]]]:
    return {key: said for key, said in COMPOSITE.items() if key[:2] == (table, label)}


def _values(table: str, label: str, text: str, count: int) -> list[Any]:
    """What a cell says of each of its fields: "29 / 15" of two, "16384" of both."""
    if not text:
        return [BLANK] * count
    if label == "0x3a8/0x3b0/0x3b8/0x3c0" or label == "0x388/0x390/0x398":
        return [tuple(int(part) for part in text.split("/"))]
    if label == "0x400" or label == "0x410":  # the block holds the logarithm
        return [None if text == "none" else 2 ** int(text)]
    if label == "Q4_x16 slice saturation |v|>4094":
        return [4094 if text == "1" else None]
    if label == "0x580":
        return [text]
    text = re.sub(r", no 3D| \(always split\)$", "", text)
    if re.fullmatch(r"\[?\d+(,\d+)+\]?", text):
        return [tuple(int(part) for part in text.strip("[]").split(","))]
    parts = text.split(" / ") if count > 1 else [text]
    values = [_value(table, label, part) for part in parts]
    return values if len(values) == count else values * count


def _value(table: str, label: str, text: str) -> Any:
    if text in WORDS:
        return WORDS[text]
    found = re.fullmatch(r"(?:0x52d=)?(\d+) ?(B|px|KB|MB)?", text)
    if found is None:
        raise unread(table, label, text)
    return int(found[1]) * UNITS[found[2] or ""]
