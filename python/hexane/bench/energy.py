"""Measures power while calls are timed, if the system allows it: with `powermetrics` of macOS, which only root may
run."""

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from math import fsum
from threading import Thread
from types import TracebackType

POWERMETRICS = "/usr/bin/powermetrics"
SAMPLERS = ("--samplers", "cpu_power", "-i")  # the next argument is the milliseconds between samples
ROW = re.compile(r"^(CPU|GPU|ANE) Power: (\d+(?:\.\d+)?) mW", re.MULTILINE)
PATIENCE = 5.0  # seconds for the first sample


def meter_command(every_ms: int = 100) -> tuple[list[str], str]:
    """The command that prints samples, and "". If there is none, an empty command and the reason. The command never
    asks for a password."""
    if sys.platform != "darwin":
        return [], f"not measured: {sys.platform} has no meter that Hexane reads (macOS has: powermetrics)"
    command = [POWERMETRICS, *SAMPLERS, str(every_ms)]
    if os.geteuid() == 0:
        return command, ""
    try:
        asked = subprocess.run(
            ["/usr/bin/sudo", "-n", POWERMETRICS, "--help"], capture_output=True, check=False, timeout=5
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], f"not measured: sudo gave no answer ({error})"
    if asked.returncode:
        return [], "not measured: powermetrics needs root (run with sudo, or `sudo -v` first)"
    return ["/usr/bin/sudo", "-n", *command], ""


@dataclass(frozen=True, slots=True)
class Power:
    """Mean power over samples in mW, of the whole machine, not only of the measured program."""

    cpu_mw: float
    gpu_mw: float
    ane_mw: float
    samples: int


class Meter:
    """A context in which a command that prints samples runs. `power`: their mean, None without samples. `last`: the
    latest sample while the command runs, in mW by part of the machine ("cpu", "gpu", "ane"); empty before the first."""

    def __init__(self, command: list[str]) -> None:
        self.command = command
        self.power: Power | None = None
        self.last: dict[str, float] = {}
        self._samples: list[tuple[float, dict[str, float]]] = []

    def __enter__(self) -> "Meter":
        if self.command:
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            self._reader = Thread(target=self._read, daemon=True)
            self._reader.start()
            until = time.perf_counter() + PATIENCE
            while not self._samples and self._process.poll() is None and time.perf_counter() < until:
                time.sleep(0.01)
            self._entered = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.command:
            return
        ended = time.perf_counter()
        self._process.terminate()  # sudo passes the signal to the command
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._reader.join(PATIENCE)
        assert self._process.stdout is not None
        self._process.stdout.close()
        # The first sample of power is left out, because it began before the calls did.
        inside = [values for at, values in self._samples if self._entered <= at <= ended][1:]
        if inside:
            cpu, gpu, ane = (fsum(values[name] for values in inside) / len(inside) for name in ("CPU", "GPU", "ANE"))
            self.power = Power(cpu, gpu, ane, len(inside))

    def _read(self) -> None:
        """Reads samples. Each sample has three rows: CPU, GPU, and last ANE."""
        values: dict[str, float] = {}
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if row := ROW.match(line):
                values[row[1]] = float(row[2])
                if len(values) == 3:
                    self._samples.append((time.perf_counter(), values))
                    self.last = {name.lower(): power for name, power in values.items()}
                    values = {}
