"""A verdict on an op for a chip, and the routes to the engine."""

from dataclasses import dataclass
from typing import Literal

from hexane.targets.fact import Claim

Kind = Literal["native", "decomposed", "oversize", "host", "rejected"]
Route = Literal["mil", "netplist"]
KINDS: tuple[Kind, ...] = ("native", "decomposed", "oversize", "host", "rejected")  # verdicts from best to worst
ROUTES: tuple[Route, ...] = ("mil", "netplist")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict on an op for a chip.

    verdict: "native" runs as it is; "decomposed" runs on the engine as other ops; "oversize" is larger than the chip
    takes; "host" runs outside the engine; "rejected" is refused by the engine's compiler. rule: the rule that decided.
    reject: the validator's message, verbatim if `published`. change: the advised rewrite. form: how Hexane rewrites the
    node ("tiled: width, 3 pieces").
    """

    verdict: Kind
    reason: str
    rule: str
    source: str
    status: str
    reject: str = ""
    published: bool = False
    change: str = ""
    claims: tuple[Claim, ...] = ()
    form: str = ""

    @property
    def runs(self) -> bool:
        """True if the engine computes the op, as it is, as other ops, or in pieces."""
        return self.verdict in ("native", "decomposed") or bool(self.form)

    def __str__(self) -> str:
        return f"{self.verdict}: {self.reason} ({self.source}, {self.status})"
