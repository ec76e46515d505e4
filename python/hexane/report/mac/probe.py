"""A probe: a question to this machine, and cases that answer it. Each case of a probe runs in a process that may hang
or crash."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hexane import _core
from hexane.runtime.engine import ane_setup
from hexane.targets.dispatch import dispatch

Values = dict[str, Any]  # the results of a case, for JSON


@dataclass(frozen=True, slots=True)
class Context:
    """The parameters of cases. salt: a word in all programs of one report, so that none is in the service's cache.
    coreml: the path of a replacement of Core ML; "" for the system's. programs: how many programs are compiled and
    loaded to find the limits. target: the chip of the engine."""

    library: str
    framework: str
    salt: str
    programs: int
    target: str
    coreml: str = ""

    def setup(self, *, limited: bool = True) -> _core.AneSetup:
        """limited: False for a process that exceeds the known limits."""
        setup = ane_setup(Path(self.library), self.framework)
        if limited:
            return setup
        return _core.AneSetup(
            library=self.library,
            framework=self.framework,
            compile_limit=0,
            load_limit=0,
            load_retry_ms=dispatch().load_retry_ms,
            build_limit_ms=dispatch().build_limit_ms,
            evaluate_limit_ms=dispatch().evaluate_limit_ms,
        )

    def device(self, *, limited: bool = True) -> _core.Device:
        return _core.ane_device(self.setup(limited=limited))


Case = Callable[[Context], Values]
"""Runs in a process of the probe. An Error is a result too: that of a case which does not work."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A question and its cases. cases: by name, in order; a case may rely on the service's state after an earlier one.
    seconds: the limit per case. per_process: how many cases share a process if none fails."""

    name: str
    question: str
    cases: Mapping[str, Case]
    seconds: float = 120.0
    per_process: int = 1
