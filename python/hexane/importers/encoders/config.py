"""The config of a text encoder from config.json of Hugging Face.

Fields that do not change the results are ignored. One error names all unknown fields that may change the results.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hexane.errors import Error
from hexane.importers.encoders.families import ACTIVATIONS, DEFAULTS, FAMILIES, FIELDS, FIXED, HARMLESS, Family

LARGEST = 1 << 30


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """The sizes of a text encoder. In each layer, attention and an MLP are each followed by a layer norm.

    family: the model_type; dim: channels of a token; hidden: of an MLP; positions: rows of the position table; types:
    rows of the token-type table, 0 without one; padding: the id of the padding token; counted: positions count only
    tokens that are not padding, from padding + 1 on; buckets: of relative positions (MPNet), or 0; head: the end of the
    name in `architectures`, or ""; pooled: the model has a pooler, which is a linear layer and tanh on the first token.
    """

    family: str
    vocab: int
    dim: int
    hidden: int
    layers: int
    heads: int
    positions: int
    types: int
    epsilon: float
    activation: str
    padding: int = 0
    counted: bool = False
    buckets: int = 0
    head: str = ""
    pooled: bool = False

    @property
    def longest(self) -> int:
        """The highest number of tokens in an input."""
        return self.positions - (self.padding + 1 if self.counted else 0)

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


def is_encoder(given: Mapping[str, Any]) -> bool:
    """True if the fields of a config.json name one of `FAMILIES`."""
    return isinstance(given.get("model_type"), str) and given["model_type"] in FAMILIES


def config_in(where: str, given: Mapping[str, Any]) -> EncoderConfig:
    """Returns the config from the fields of a file. Raises Error, with the prefix `where`, for unknown fields and
    unsupported values."""
    kind = given.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise Error(f"{where}: model_type: got {short(kind)}, need one of {', '.join(FAMILIES)}")
    return _Reader(where, given, kind, FAMILIES[kind]).config()


class _Reader:
    """Reads the fields of one file."""

    def __init__(self, where: str, given: Mapping[str, Any], kind: str, family: Family) -> None:
        self.where, self.given, self.kind, self.family = where, given, kind, family
        self.wrong: list[str] = []

    def get(self, name: str) -> Any:
        return self.given.get(name, self.family.defaults.get(name, DEFAULTS.get(name)))

    def bad(self, name: str, need: str) -> None:
        self.wrong.append(f"{name}: got {short(self.get(name))}, need {need}")

    def config(self) -> EncoderConfig:
        fields = {own: self.value(own, name) for own, name in self.names().items() if name}
        self.unknown()
        fields["head"] = self.head()
        if not self.wrong and fields["dim"] % fields["heads"]:
            heads = self.names()["heads"]
            self.bad(heads, f"a divisor of the {fields['dim']} of {self.names()['dim']}")
        if self.wrong:
            raise Error(f"{self.where}: {'; '.join(self.wrong)}")
        config = EncoderConfig(self.kind, **{**fields, **self.family.fixed})
        if config.longest < 1:
            raise Error(
                f"{self.where}: max_position_embeddings: got {config.positions}, need more than the padding's id"
            )
        return config

    def names(self) -> dict[str, str]:
        return {own: self.family.fields.get(own, name) for own, name in FIELDS.items()}

    def value(self, own: str, name: str) -> Any:
        value = self.get(name)
        if own == "activation":
            if not isinstance(value, str) or value not in ACTIVATIONS:
                self.bad(name, " or ".join(map(repr, ACTIVATIONS)))
                return "gelu"
            return ACTIVATIONS[value]
        if own == "epsilon":
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1:
                self.bad(name, "a number above 0")
                return 1.0
            return float(value)
        if own == "padding" and not self.family.fixed.get("counted"):
            return 0  # does not change the results
        least = 0 if own in ("types", "padding") else 1
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST:
            self.bad(name, f"an integer from {least} on")
            return 1
        return value

    def unknown(self) -> None:
        for name, needed in FIXED.items():
            got = self.given.get(name, needed[0])
            if not any(got == need and isinstance(got, bool) == isinstance(need, bool) for need in needed):
                self.bad(name, repr(needed[0]))
        known = {*FIXED, *self.names().values()} | HARMLESS
        for name in sorted(self.given):
            # A leading underscore marks an internal field of transformers, which does not describe the model.
            if name in known or name.startswith("_") or self.given[name] in (None, False):
                continue
            self.wrong.append(
                f"{name}: got {short(self.given[name])} in a field that is not known here; need a config without it: it"
                " may change what the model computes"
            )

    def head(self) -> str:
        given = self.given.get("architectures")
        if given in (None, []):
            return ""
        if not isinstance(given, list) or len(given) != 1 or not isinstance(given[0], str):
            self.bad("architectures", "a list of one name")
            return ""
        if given[0].endswith("Model"):
            return ""
        head = next((name for name in self.family.heads if given[0].endswith(name)), None)
        if head is None:
            self.bad("architectures", f"names that end in Model, {', '.join(self.family.heads)}")
        return head or ""


def short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
