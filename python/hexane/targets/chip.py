"""Chip: a target with the facts about one generation of the engine.

Plain values are fields; `facts` has the source of each value under the same name: `chip.extents.width`,
`chip.facts["extents.width"]`. A field that may be None is unknown for some chip, or the chip lacks the limit; the
status of its fact tells which. `shared/fields.toml` gives each field's meaning, unit, and place in the engine's
compiler.
"""

from dataclasses import dataclass

from hexane.targets.devices import well_known
from hexane.targets.family import Family, Tier
from hexane.targets.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """In megahertz. Entries at the same index of two lists belong together."""

    engine: tuple[int, ...] | None
    effective: tuple[int, ...] | None
    fabric: tuple[int, ...] | None
    dram: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Extents:
    """The largest tensors, kernels and patches, in elements."""

    width: int
    height: int
    depth: int
    channels: int
    batch: int
    rank: int
    transpose_width: int
    transpose_height: int
    transpose_elements: int | None
    kernel_width: int
    kernel_width_default: int
    kernel_height: int
    kernel_depth: int
    small_kernel_width: int
    small_kernel_width_default: int
    small_kernel_height: int
    small_kernel_depth: int
    min_kernel_width: int
    min_kernel_width_default: int
    patch_width: int
    patch_height: int
    patch_depth: int
    patch_floor: int | None
    patch_cap: int | None
    pool_window: int | None
    reduction_route: int | None
    arg_extent: int | None
    group_decompose: int
    stride_factors: tuple[int, ...]
    stride_factors_per_axis: int
    live_tensors: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Sizes and alignments in bytes, and the banks. partition_percent: the share of the working set that a partition
    may use."""

    working_set: int
    partition_percent: int
    kernel: int
    streamed_kernel: int | None
    resident_output: int | None
    activation_table: int
    destination_stride: int | None
    banks: int
    bank_bytes: int
    dma_granule: int
    instruction_alignment: int
    row_alignment: int
    page: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """Features of the chip, or switches that its compiler sets for it."""

    collective: bool
    kernel_streaming: bool
    resident_output: bool | None
    square_after_reduction: bool
    m_class: bool | None
    pe_work_unit_shape: bool | None
    dropout_random: bool
    small_source_compression: bool | None
    odd_work_units: bool | None
    global_arg: bool
    transpose_multicast: bool | None
    secure_cache_hint: bool | None
    blockwise_stream: bool | None
    int8_stream: bool | None
    palette_stream: bool | None
    dma_fp32: bool | None
    dma_e4m3: bool | None
    dma_e5m2: bool | None
    dma_two_byte_live: bool | None
    cross_die: bool | None
    double_int8: bool
    fifo_dma: bool
    multi_die_hazards: bool | None
    multi_die_remote: bool | None
    winograd: bool | None
    detect_zeros: bool
    depth_broadcast: bool | None
    dynamic_goc: bool
    softmax: bool
    instance_norm: bool
    min_max_norm: bool | None
    local_response_norm: bool | None
    texture_engine: bool
    chaining: bool | None
    kernel_caching: bool | None
    sin_cos: bool
    yuv420: bool
    shared_kernel_data: bool
    gather_check: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """Formats of a chip's programs. ports: dtypes of a program's inputs. streams: weight encodings that stay compressed
    up to the engine."""

    ports: tuple[str, ...]
    streams: tuple[str, ...]
    palette_bits: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hazards:
    """Where the engine silently computes something else."""

    width_slice_limit: int | None
    width_slice_concat: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hal:
    """Numbers of the compiler's parameter block (its hardware abstraction layer)."""

    num_nes: int | None
    accumulators: int
    accumulator_granule: int | None
    accumulator_channels: tuple[int, ...] | None
    output_group_bytes: tuple[int, ...] | None
    output_group: int
    small_source_bound: int | None
    unicast_channels: int | None
    extended_kernel_memory: int
    kernel_layout: int | None
    pool_patch_clamp: int | None
    reflect_padding: int | None
    tile_errata_height: int | None
    prefetch_interval: int | None
    cache_hint: int | None
    interchange_formats: int
    cost_policy: str
    clock_multiplier: int | None
    cycle_divisor: int | None
    struct_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip(Target):
    """One generation and size of the Neural Engine."""

    silicon: str
    products: tuple[str, ...]
    dies: tuple[str, ...]
    runtime_arch: str | None
    family: Family
    tier: Tier
    hardware_version: int | None
    cpu_subtype: int | None
    descriptor: int | None
    relocation_stride: int | None
    cores: int
    clocks: Clocks
    extents: Extents
    memory: Memory
    gates: Gates
    formats: Formats
    hazards: Hazards
    hal: Hal

    @property
    def known(self) -> tuple[str, ...]:
        """The chip's common names, such as ("iPhone 12", "M1"); none for a chip without a product."""
        return tuple(well_known(self.products))

    @property
    def lead(self) -> str:
        """The chip's name in tables and pages: the name asked for, else the common names, else its own."""
        return self.asked or ", ".join(self.known) or self.name

    @property
    def title(self) -> str:
        """The chip's name in the first line of a report: "A14 (h13)" if the user asked for A14, else "h13 (iPhone 12,
        M1)", or, for a chip without a product, "m9 (embedded, in no known product)"."""
        if self.asked:
            return self.label
        unsold = f"{self.silicon}, in no known product" if self.silicon in ("embedded", "reference") else self.silicon
        return f"{self.name} ({', '.join(self.known) or unsold})"
