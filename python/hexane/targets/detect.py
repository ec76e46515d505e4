"""Detects the target of this machine."""

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import cache

from hexane.errors import Error
from hexane.targets.family import Tier
from hexane.targets.groups import arch_for_tier
from hexane.targets.names import Name, find, lookup


def read_brand() -> str:
    """The brand string of the CPU on macOS, such as "Apple M1 Pro"; "" on other systems, and if it cannot be read.

    The model identifier would be misleading: MacBookPro17,1 is an M1, but Mac17,8 an M5.
    """
    if sys.platform != "darwin":
        return ""
    command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    return ran.stdout.strip()


def detect(brand: Callable[[], str] = read_brand) -> str:
    """The name of this machine's target: from HEXANE_TARGET, if set, else from `this_machine`. Raises Error if
    HEXANE_TARGET names no target."""
    return detect_name(brand).target


def detect_name(brand: Callable[[], str] = read_brand) -> Name:
    """The target as in `detect`, and the name by which HEXANE_TARGET or the machine calls it."""
    if by_environment := os.environ.get("HEXANE_TARGET", ""):
        return lookup_environment(by_environment)
    return _machine_name(brand)


def this_machine(brand: Callable[[], str] = read_brand) -> str:
    """The target of the chip that `brand` names; "host" if it is no chip of Apple's.

    An Apple chip without a target gets the oldest target that runs MIL programs, with one warning. A program for that
    target runs on every later chip.
    """
    return _machine_name(brand).target


def _machine_name(brand: Callable[[], str]) -> Name:
    name = brand()
    if not name.startswith("Apple"):
        return Name("host", "host")
    return find(name) or _unknown(name)


def lookup_environment(spelling: str) -> Name:
    """`lookup` for the variable HEXANE_TARGET, which the error mentions."""
    try:
        return lookup(spelling)
    except Error as error:
        raise Error(f"{error}: the variable HEXANE_TARGET names it") from None


@cache
def _unknown(brand: str) -> Name:
    floor = arch_for_tier(Tier.A13)
    warnings.warn(
        f"[target] got the chip {brand!r}, which no target knows: taking {floor}, whose programs run on every "
        "later chip; HEXANE_TARGET names another",
        stacklevel=3,
    )
    return Name(floor, floor)
