"""The parameters of the formula for each chip, and the quantiles of its residuals: `targets/shared/cost.toml`."""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from hexane.errors import Error
from hexane.targets import Chip
from hexane.targets.devices import devices, identifiers
from hexane.targets.fact import Fact, Place, check_keys, check_source, read_fact
from hexane.targets.query import load_chip
from hexane.targets.tables import parse_toml, table


@dataclass(frozen=True, slots=True)
class Rates:
    """A chip's rates. floor_us: the fixed time of a submission. gbps: 10^9 bytes a second; gops: 10^9 operations a
    second: two for each multiply-add of a product, one for each element of other layers. read, write: copies to and
    from the engine, once a call; stream: weights; traffic: activations in main memory. tile_bytes: while the engine
    reads the weights once, it processes this many bytes of the first operand."""

    floor_us: float
    read_gbps: float
    write_gbps: float
    stream_gbps: float
    traffic_gbps: float
    tile_bytes: float
    gemm_gops: float
    conv_gops: float
    attention_gops: float
    elementwise_gops: float
    softmax_gops: float
    norm_gops: float
    reduction_gops: float

    def gops(self, kind: str) -> float:
        result: float = getattr(self, f"{kind}_gops")
        return result


FILE = "shared/cost.toml"
RateFacts = Mapping[str, Mapping[str, Fact]]  # product -> name of a rate -> the rate
RATES = tuple(f.name for f in fields(Rates))
SCALED = ("gemm_gops", "conv_gops", "attention_gops")  # scale with the engine's peak if they come from another chip


@dataclass(frozen=True, slots=True)
class Calibration:
    """The rates of a chip. measured_on: the product that they were fitted to; extrapolated: true if another product was
    asked for. `scale`: the ratio of the peaks, by which the rates of products were multiplied; 1 for rates of the same
    target. source, status: where the rates come from. further: in a network, the longest layer counts with its time
    alone, and each other layer with this fraction of its own."""

    rates: Rates
    measured_on: str
    extrapolated: bool
    source: str
    status: str
    scale: float = 1.0
    further: float = 1.0


@dataclass(frozen=True, slots=True)
class HostRates:
    """Rates of the segments computed by the CPU."""

    gops: float
    gbps: float


def calibration(chip: Chip, own: RateFacts | None = None) -> Calibration:
    """The measured rates of a product, or of the measured chip nearest to it. own: rates by product,
    used instead of `shared/cost.toml`."""
    own = own or {}
    known = {name: rates_of(name) for name in measured()} | {name: plain(facts) for name, facts in own.items()}
    chosen = choose(chip, known)
    name = chosen.measured_on
    fact = (own[name] if name in own else rate_facts(name))[RATES[0]]
    return replace(chosen, source=fact.source, status=fact.status, further=1.0 if name in own else further_layers(name))


def choose(chip: Chip, known: Mapping[str, Rates]) -> Calibration:
    """The rates for a chip from a table of measured products, without their source. A group of products has the rates
    of one that was measured."""
    own = next((name for name in known if name.casefold() in _asked(chip).values()), None)
    if own is None and not chip.asked:  # a chip given by its target's name gets the target's first measured product
        own = next((name for name in known if load_chip(name).name == chip.name), None)
    if own is not None:
        return Calibration(known[own], own, extrapolated=bool(_unmeasured(chip, known)), source="", status="")
    name = nearest(chip, tuple(known))
    scale = peak_ratio(chip, load_chip(name))
    rates = replace(known[name], **{key: getattr(known[name], key) * scale for key in SCALED})
    return Calibration(rates, name, extrapolated=True, source="", status="", scale=scale)


def product_of(chip: Chip) -> str:
    """The product by whose name a chip was requested, in lower case and without "Apple"; for a device, the product
    inside the device."""
    return _product(chip.asked)


def unmeasured(chip: Chip) -> list[str]:
    """The names by which a chip was requested, "A14" and "iPhone 12" for example, whose products have no rates in
    `shared/cost.toml`. For a chip requested by its target's name, that name, if none of its products has rates."""
    if chip.asked:
        return _unmeasured(chip, measured())
    return [chip.label] if calibration(chip).extrapolated else []


def _unmeasured(chip: Chip, known: Iterable[str]) -> list[str]:
    products = {name.casefold() for name in known}
    return [name for name, product in _asked(chip).items() if product not in products]


def _asked(chip: Chip) -> dict[str, str]:
    """The product of each name by which a chip was requested; names of devices may have commas without a space."""
    return {name: _product(name) for name in chip.asked.split(", ") if name}


def _product(name: str) -> str:
    plain = name.casefold().removeprefix("apple ").strip()
    return _products().get(plain, plain)


@cache
def _products() -> dict[str, str]:
    """The product inside each device: "m1" for "macbookpro17,1"."""
    return {device.casefold(): chip.casefold() for device, chip in {**devices(), **identifiers()}.items()}


def nearest(chip: Chip, names: tuple[str, ...]) -> str:
    """Returns the measured product that is most like a chip: of the nearest generation, then of the same target, then
    with a die of the same size, where Pro, Max and Ultra count as one size, and then of the newest generation."""

    def distance(name: str) -> tuple[float, ...]:
        other = load_chip(name)
        other_target = other.name != chip.name
        large = bool(re.search(r"Pro|Max|Ultra", chip.asked)) != bool(re.search(r"Pro|Max|Ultra", name))
        return (abs(generation(other.name) - generation(chip.name)), other_target, large, -generation(other.name))

    return min(names, key=distance)


def generation(target: str) -> int:
    """The number in a target's name: 13 of h13g."""
    match = re.search(r"\d+", target)
    return int(match[0]) if match else 0


@cache
def clock_of(target: str) -> Fact:
    """The top clock of a target in MHz. If the target's clock is unknown, the clock of its generation, whose name has
    no letter at the end. The value is None if both are unknown."""
    known = load_chip(target).facts["clocks.engine"]
    if known.value is not None:
        return Fact(known.value[-1], known.source, known.status)
    plain = target.rstrip("abcdegs")
    if plain == target:
        return known
    clock = clock_of(plain)
    return clock if clock.value is None else Fact(clock.value, f"the clock of {plain}", "inferred")


def peak_ratio(chip: Chip, other: Chip) -> float:
    """The ratio of cores times clock of two chips. If a clock is unknown, the ratio of cores alone."""
    clocks = (clock_of(chip.name).value, clock_of(other.name).value)
    cores = (chip.cores or 1) / (other.cores or 1)
    return cores if None in clocks else cores * clocks[0] / clocks[1]


def measured() -> tuple[str, ...]:
    """The products whose latencies were fitted."""
    return tuple(table("cost")["chips"])


@cache
def rates_of(name: str) -> Rates:
    return plain(rate_facts(name))


def plain(facts: Mapping[str, Fact]) -> Rates:
    return Rates(**{key: fact.value for key, fact in facts.items()})


def read_rates_file(path: str | os.PathLike[str]) -> RateFacts:
    """The rates by product in a file that `hexane bench --calibrate` wrote. Raises Error for any other file."""
    file = os.fspath(path)
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror or str(error)) if isinstance(error, OSError) else "got bytes that are no UTF-8"
        raise Error(f"[{file}] {why}, need a file that `hexane bench --calibrate` wrote") from None
    given = parse_toml(text, file)
    chips = given.get("chips")
    if given.keys() != {"source", "status", "chips"} or not isinstance(chips, dict) or not chips:
        raise Error(f"[{file}] got the keys {', '.join(given) or 'none'}, need source, status and tables of chips")
    place = Place(file, *check_source(Place(file, "", ""), "the file", given))
    for name, rates in chips.items():
        load_chip(name)
        if not isinstance(rates, dict):
            raise Error(f"[{file}] chips.{name}: got {rates!r}, need a table of rates")
    return {name: read_rates(rates, f"chips.{name}", place) for name, rates in chips.items()}


@cache
def rate_facts(name: str) -> Mapping[str, Fact]:
    """The rates of a measured product by name, each with source and status."""
    return read_rates(table("cost")["chips"][name], f"chips.{name}", _place())


def read_rates(given: Mapping[str, Any], path: str, place: Place) -> Mapping[str, Fact]:
    """The rates in a product's table, each a number or a fact. Raises Error for a missing or wrong rate."""
    rates = {key: value for key, value in given.items() if key != "rows"}
    check_keys(place, path, rates, set(RATES))
    return {key: read_fact(place, f"{path}.{key}", rates[key], float) for key in RATES}


@cache
def host_rates() -> HostRates:
    return HostRates(*(fact.value for fact in host_facts().values()))


@cache
def host_facts() -> Mapping[str, Fact]:
    """The rates of the CPU, as the placement model uses them."""
    given = dict(table("cost")["host"])
    place = Place(FILE, *check_source(_place(), "host", given))
    return {key: read_fact(place, f"host.{key}", given.get(key), float) for key in ("gops", "gbps")}


@cache
def further_layers(product: str) -> float:
    """The fraction of its time alone with which a layer of a network counts, from published networks on the product; 1
    if none is published. The longest layer counts with all its time."""
    given = table("cost")["networks"].get(product)
    return 1.0 if given is None else float(read_fact(_place(), f"networks.{product}", given, float).value)


@cache
def residuals(kind: str, extrapolated: bool) -> tuple[float, float]:
    """The quantiles p10 and p90 of measured / estimated time for programs of a kind. They come from latencies left out
    of the fit, or for an extrapolated chip from chips left out of it. The kind "plain_network" is a network on a
    product without published networks."""
    which = "unseen_chips" if extrapolated else "unseen_rows"
    spans = table("cost")[which]
    known = kind if kind in spans else "other"
    fact = read_fact(_place(), f"{which}.{known}", spans[known], tuple[float, ...])
    low, high = fact.value
    return low, high


@cache
def power_mw(product: str, kind: str) -> Fact | None:
    """The published power of a product's engine for programs of a kind: least, median and most. None if fewer than two
    programs are published."""
    given = table("power")
    row = given["chips"].get(product, {}).get(kind)
    place = Place("shared/power.toml", given["source"], given["status"])
    return None if row is None else read_fact(place, f"chips.{product}.{kind}", row, tuple[float, ...])


def _place() -> Place:
    given = table("cost")
    return Place(FILE, *check_source(Place(FILE, "", ""), "the file", given))
