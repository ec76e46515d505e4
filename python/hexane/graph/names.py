"""The names of ports, params and states: checks that a plan can hold them, and finds free ones."""

from hexane.errors import Error


def check_name(what: str, name: str) -> None:
    """Raises Error for a name that UTF-8 cannot encode, and for one that contains NUL, which ends a name in a plan."""
    try:
        written = name.encode()
    except UnicodeEncodeError:
        raise Error(f"[graph] {what} {name!a}: got a lone surrogate in the name, need text that UTF-8 has") from None
    if b"\0" in written:
        raise Error(f"[graph] {what} {name!a}: got NUL in the name, need text without it")


def free_name(name: str, taken: set[str]) -> str:
    """The name, with the first free number appended if it is taken."""
    if name not in taken:
        return name
    number = 1
    while f"{name}_{number}" in taken:
        number += 1
    return f"{name}_{number}"
