"""The chips in devices, and the common names of chips."""

from collections.abc import Iterator
from functools import cache

from hexane.errors import Error
from hexane.targets.tables import table


@cache
def devices() -> dict[str, str]:
    """The chip of each device, by the device's name. Raises Error for a device with two chips."""
    chips: dict[str, str] = {}
    for chip, row in table("devices")["chips"].items():
        for device in row["devices"]:
            if device in chips:
                raise Error(f"[shared/devices.toml] got {device!r} for {chips[device]} and {chip}, need one chip")
            chips[device] = chip
    return chips


@cache
def identifiers() -> dict[str, str]:
    """The chip of each model identifier, such as A14 for iPhone13,2. Raises Error for an identifier with two chips."""
    chips: dict[str, str] = {}
    for chip, names in table("devices")["identifiers"]["chips"].items():
        for name in names:
            if name in chips:
                raise Error(f"[shared/devices.toml] got {name!r} for {chips[name]} and {chip}, need one chip")
            chips[name] = chip
    return chips


def well_known(products: tuple[str, ...]) -> Iterator[str]:
    """The common names of these chips: "iPhone 12" for A14, "M1" for M1. A chip without a row in the table is called by
    its own name."""
    rows = table("devices")["chips"]
    for chip in products:
        if name := rows.get(chip, {"known": chip}).get("known"):
            yield name
