"""The name of this CPU's instruction set, as people know it."""

import re

from hexane import _core

# Highway's names of sets of instructions, and the usual names.
_USUAL = {"AVX3": "AVX-512", "DL": "with VNNI", "ZEN4": "of Zen 4", "SPR": "of Sapphire Rapids"}


def cpu_instructions(name: str = "") -> str:
    """Returns "AVX-512 with VNNI" for Highway's AVX3_DL, and other names unchanged. name: default this CPU's."""
    name = name or _core.isa()
    match = re.fullmatch(r"(AVX3)(?:_(\w+))?", name)
    if match is None:
        return name
    extension = _USUAL.get(match[2], match[2]) if match[2] else ""
    return " ".join(filter(None, (_USUAL[match[1]], extension)))
