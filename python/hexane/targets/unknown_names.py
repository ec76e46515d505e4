"""Names that users may request although they are no targets."""

from collections.abc import Mapping
from functools import cache

from hexane.targets.tables import table


@cache
def unknown_names() -> Mapping[str, str]:
    """For each unknown name, the error text after "got NAME": a description, its source, and the advised
    replacement."""
    result = {}
    for name, row in table("unknown_names").items():
        said = f"{row['about']} ({row['source']}, {row['status']}), need another, such as {' or '.join(row['near'])}"
        result[name] = said
        result |= dict.fromkeys(row.get("devices", ()), f"which has {name}, {said}")
    return result
