"""The loop around a training step: batches, log, evaluation, checkpoints, and resuming after an interruption."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from hexane import _core
from hexane.build import Tensor, graph
from hexane.errors import DeviceError, Error, HazardWarning, warn
from hexane.graph import Array
from hexane.options import Options
from hexane.runtime import Model, compile
from hexane.runtime.compile_graphs import compile_with_programs
from hexane.targets import Chip, load_target
from hexane.train.all_reduce import AllReduce
from hexane.train.evaluating import evaluating
from hexane.train.interrupts import ended_by_sigterm, first_interrupt, held_interrupts
from hexane.train.kernels import Variant, on_engine
from hexane.train.log import Log
from hexane.train.measured import Measured
from hexane.train.notes import NOTES
from hexane.train.optimizers import Optimizer
from hexane.train.progress import Progress
from hexane.train.ranks import Communicator, Ranks
from hexane.train.trained import trained
from hexane.train.training_step import CALLS, GRADIENT, STEP, check_states, step
from hexane.train.wide_backward import backward_of_wide_weights, warning_text

Batch = Mapping[str, Any]
Batches = Iterable[Batch] | Callable[[int], Batch]
CHECKPOINT = "checkpoint.hxc"
OLD_CHECKPOINT = "checkpoint.hxp"  # Earlier versions wrote a plan as checkpoint.
LOG = "log.jsonl"


class Trainer:
    """Trains params of a loss.

    loss, params, optimizer, clip, clip_value, accumulate, loss_scale, guard, notes: see `hx.train.step`.
    metrics: tensors by name that an evaluation averages, such as an accuracy; the loss is always included. folder: for
    `log.jsonl` and `checkpoint.hxc`; None: nothing is written. options: of `hx.compile`; threads: overrides the
    options'. programs, variant: for a chip, the step is cut into programs; see `hx.train.on_engine`. communicator: of
    the processes that train together: mpi4py's `MPI.COMM_WORLD`, or an object with its buffer methods. Each process has
    a Trainer and batches of its own rows; updates use the mean of their gradients. Only rank 0 writes to the folder.

    Raises Error as `step` and `compile` do, and with a communicator for a loss with dropout or batch norms.
    """

    def __init__(
        self,
        loss: Tensor,
        params: Sequence[Tensor],
        optimizer: Optimizer,
        *,
        clip: float | None = None,
        clip_value: float | None = None,
        accumulate: int = 1,
        loss_scale: float = 1.0,
        guard: str = "all",
        notes: Mapping[str, Any] | None = None,
        metrics: Mapping[str, Tensor] | None = None,
        folder: str | os.PathLike[str] | None = None,
        options: Options | None = None,
        threads: int | None = None,
        programs: bool = False,
        variant: Variant = "cpu-head",
        communicator: Communicator | None = None,
    ) -> None:
        given = options or Options()
        self._options = given if threads is None else given.given({"threads": threads})
        self._ranks = Ranks(communicator)
        self._sums = None if communicator is None else AllReduce(self._ranks)
        graph_of_step = step(
            loss, params, optimizer, clip=clip, clip_value=clip_value, accumulate=accumulate, loss_scale=loss_scale,
            guard=guard, notes=notes, sums=self._sums,
        )  # fmt: skip
        if programs:
            graph_of_step = on_engine(graph_of_step, variant)
        if self._sums is not None:
            check_states(graph_of_step, params, optimizer)
            model: Any = compile_with_programs(graph_of_step, self._sums.programs, self._options)
        else:
            model = compile(graph_of_step, self._options)
        if not isinstance(model, Model):
            raise Error("[train.Trainer] loss: got a graph with free dims, need fixed shapes")
        self.net = model
        self._is_torn = False  # whether an interrupted step has updated only some states
        chip = load_target(self._options.target) if isinstance(self._options.target, str) else self._options.target
        self._guarded = None
        if isinstance(chip, Chip) and self._ranks.is_first:
            self._guarded = backward_of_wide_weights(loss, params, loss_scale, chip)
            self._warning = partial(warning_text, loss_scale=loss_scale, chip=chip)
        self._metrics = {"loss": loss, **(metrics or {})}
        self._folder = None if folder is None else Path(folder)
        self._evaluator: Model | None = None
        self._accumulate = accumulate

    @property
    def calls(self) -> int:
        """The number of batches trained on, including those before a loaded checkpoint."""
        return int(self.net.read_state(CALLS)[0])

    @property
    def updates(self) -> int:
        """The number of updates of the params. An update uses `accumulate` batches. Non-finite gradients cause no
        update, but with guard="each" it counts."""
        return int(self.net.read_state(STEP)[0])

    def fit(
        self,
        batches: Batches,
        steps: int,
        *,
        evaluate_every: int = 0,
        evaluation: Iterable[Batch] | None = None,
        checkpoint_every: int = 0,
        resume: bool = False,
        progress: bool | None = None,
        tokens: int = 0,
        trace: str | os.PathLike[str] | None = None,
        sample: Callable[[], str | None] | None = None,
        sample_every: int = 0,
        watch: Callable[[], Mapping[str, float]] | None = None,
    ) -> list[dict[str, Any]]:
        """Trains until `steps` batches are done, and returns the log entries of this call.

        batches: mappings of inputs by name to arrays, in an iterable that begins at batch 0, or a function of the batch
        number. A log entry has `call` (the batch number), `step` (updates so far), `loss`, `lr`, `norm`, `ms` and other
        measurements (docs/training.md has the fields); after every `evaluate_every` batches also the metrics over
        `evaluation`, as `evaluation.NAME`. watch: a function called after each batch; it returns more numbers for the
        entry, by name. checkpoint_every: batches between checkpoints in the folder. A checkpoint is also written at the
        end, and on Ctrl-C or SIGTERM, which ends the process with code 143 unless the program handles it. resume: go on
        from the folder's checkpoint, if there is one. With the same batches, an interruption changes no bit of the
        weights and of the losses in the log. progress: a line on stderr; None: on a terminal only. tokens: trained
        tokens in a batch, for the entries (`tokens`) and the line. trace: a file for the last batch of this call as a
        Chrome trace, with lanes for this CPU and the engine. sample: a function that generates a text with the current
        params, or returns None if it cannot, called after every `sample_every` batches. The sample goes to stderr
        (except with progress=False) and into the entry, as `sample`.

        With a communicator all ranks call `fit` with the same counts, and with batches and evaluation of their own
        rows. The run begins with the states of rank 0. `steps`, `evaluate_every` and `checkpoint_every` must be
        multiples of `accumulate`. A failure on one rank
        ends the run on all.

        Raises Error for batches that end early or do not fit the model's inputs, for a checkpoint of another training,
        and for a folder that cannot be written to. If a step fails half way (an id beyond the vocabulary, an engine
        that gives up), only some params are updated: they are not saved, and this object is unusable until `load` is
        called. An engine failure raises DeviceError.
        """
        _check_counts(
            steps=steps, evaluate_every=evaluate_every, checkpoint_every=checkpoint_every, tokens=tokens,
            sample_every=sample_every,
        )  # fmt: skip
        if evaluate_every and evaluation is None:
            raise Error("[train.fit] evaluate_every: got it without evaluation, need batches to evaluate on")
        if sample_every and sample is None:
            raise Error("[train.fit] sample_every: got it without sample, need a function that makes a text")
        ranks = self._ranks
        if ranks.communicator is not None:
            self._check_ranks(steps=steps, checkpoint_every=checkpoint_every, evaluate_every=evaluate_every)
        if resume:
            ranks.first(self._resume)
        ranks.first(lambda: self._check_whole("fit"))
        if ranks.communicator is not None:
            ranks.share_states(self.net)
            self._is_torn = False
            if not self._is_between_updates:
                raise Error("[train.fit] got a checkpoint between two updates, need one after an update, with ranks")
        held = None if evaluation is None else list(evaluation)
        entries: list[dict[str, Any]] = []
        measured = Measured(self.net)
        with ExitStack() as stack:
            log = ranks.first(partial(self._log, stack))
            wanted = progress if ranks.is_first else False
            shown = stack.enter_context(Progress(steps, self.calls, wanted, self._accumulate, tokens))
            if ranks.communicator is None and self._folder is not None:
                stack.enter_context(ended_by_sigterm())
            stack.enter_context(ranks.signals())
            hold = held_interrupts if ranks.communicator is None else nullcontext
            numbered = _from(batches, self.calls, steps)
            hold_signals = stack.enter_context(first_interrupt())
            stack.callback(lambda: self._save_last(entries))
            try:
                for number, batch in ranks.each(numbered, lambda: self._is_between_updates):
                    with hold():
                        entry = self._call(number, batch, measured)
                        if watch is not None:
                            entry |= watch()
                        if tokens:
                            entry["tokens"] = (number + 1) * tokens
                        if held is not None and evaluate_every and (number + 1) % evaluate_every == 0:
                            metrics = self.evaluate(held)
                            entry |= {f"evaluation.{name}": value for name, value in metrics.items()}
                        entries.append(entry)
                        makes_sample = sample is not None and sample_every and (number + 1) % sample_every == 0
                        ranks.first(partial(_tell, entry, sample if makes_sample else None, log))
                    shown.tell(entry)
                    if "sample" in entry:
                        shown.show(entry["sample"])
                    if checkpoint_every and (number + 1) % checkpoint_every == 0:
                        ranks.check_states(self.net, _is_gradient)
                        ranks.first(self.save)
                if trace is not None and entries and ranks.is_first:
                    self.net.save_trace(trace)
            finally:  # a signal before this line is the first, whose handler delays later signals
                hold_signals()
        return entries

    def evaluate(self, batches: Iterable[Batch]) -> dict[str, float]:
        """Returns the mean loss and metrics over the batches of all ranks, with the current params.

        Raises Error if there is no batch.
        """
        if self._evaluator is None:
            model = compile(graph(evaluating(self._metrics)), self._options)
            assert isinstance(model, Model)
            self._evaluator = model
        self._evaluator.update(**{name: self.net.read_state(name) for name in self._evaluator.param_names})
        results = [self._evaluator(dict(batch)) for batch in batches]
        if not results:
            raise Error("[train.evaluate] batches: got none, need at least one")
        named = [one if isinstance(one, Mapping) else {"loss": one} for one in results]
        means = {name: float(np.mean([np.mean(one[name]) for one in named])) for name in self._metrics}
        return self._ranks.mean(means)

    def trained(self, outputs: "Tensor | Mapping[str, Tensor]") -> Model:
        """Returns the compiled inference of these tensors with the current params."""
        model = compile(trained(outputs, self.net), self._options)
        assert isinstance(model, Model)
        return model

    def save(self, path: str | os.PathLike[str] | None = None) -> None:
        """Writes a checkpoint of the current params, moments and counts, as `Model.save_states` does. path=None writes
        into the trainer's folder. A failure keeps the old file. With ranks only rank 0 writes, and only directly after
        an update: at other times each rank has accumulated gradients of its own."""
        where = self._checkpoint(path)
        self._check_whole("save")
        if self._ranks.communicator is not None and not self._is_between_updates:
            raise Error(f"[train.save] batch {self.calls}: got ranks with gradients of their own, need a whole update")
        if self._ranks.is_first:
            self.net.save_states(where)

    def load(self, path: str | os.PathLike[str] | None = None) -> None:
        """Replaces params, moments and counts by a checkpoint's values: all of them, or none if it raises Error.

        The notes of the checkpoint are not loaded. Raises Error for a checkpoint of another training: its states have
        other names, shapes or dtypes.
        """
        where = self._checkpoint(path)
        try:
            self.net.load_states(where, keep=[NOTES])
        except Error as error:
            raise Error(f"[train.load] {str(error).removeprefix('[load_states] ')}") from None
        self._is_torn = False

    def _save_last(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Saves the checkpoint at the end of a call of `fit`, also after Ctrl-C and SIGTERM."""
        if entries and self._is_whole and self._ranks.ended_together:
            self._ranks.first(lambda: None if self._folder is None else self.save())
        elif entries and self._is_whole and self._ranks.is_first and self._folder is not None:
            self.save()

    def _check_whole(self, what: str) -> None:
        if self._is_torn:
            raise Error(f"[train.{what}] got params of a step that failed half way, need load(), or a new Trainer")

    def _warn_of_wide_backward(self, batch: Batch) -> None:
        """Warns about a large loss scale, once, with the largest magnitude in the backward pass of the first batch."""
        if self._guarded is None:
            return
        guarded, self._guarded = self._guarded, None
        net = compile(guarded, threads=self._options.threads)
        assert isinstance(net, Model)
        names = {port.name for port in net.inputs}
        net.update(**{name: self.net.read_state(name) for name in net.param_names})
        result: Any = net({name: array for name, array in batch.items() if name in names})
        warn(self._warning(float(np.max(result))), HazardWarning)

    def _call(self, number: int, batch: Batch, measured: Measured) -> dict[str, Any]:
        self._warn_of_wide_backward(batch)
        begin = time.perf_counter()
        self._is_torn = True
        try:
            result: Mapping[str, Array] = self.net(dict(batch))
        except Error as error:
            # A step updates states in place as early as possible: if the step stops half way, some states are updated.
            self._is_torn = self._sums is not None or _fits(self.net, batch)
            text = f"[train.fit] batch {number}: {error}"
            if isinstance(error, DeviceError):
                raise DeviceError(text, error.stage, error.code, error.hint) from None
            raise Error(text) from (self._sums.failed if self._sums else None)
        self._is_torn = False
        ms = (time.perf_counter() - begin) * 1e3
        numbers = {name: float(value) for name, value in result.items()}
        numbers |= self._ranks.mean({"loss": numbers["loss"]})
        return {"call": number, "step": self.updates, **numbers, "ms": round(ms, 3), **measured.read(ms)}

    @property
    def _is_between_updates(self) -> bool:
        return self.calls % self._accumulate == 0

    @property
    def _is_whole(self) -> bool:
        """True if a run can resume from the states of this process."""
        return not self._is_torn and (self._ranks.communicator is None or self._is_between_updates)

    def _log(self, stack: ExitStack) -> Log | None:
        return None if self._folder is None else stack.enter_context(Log(self._folder / LOG, self.calls))

    def _check_ranks(self, **counts: int) -> None:
        """Raises Error for counts that are no multiple of `accumulate`, and if ranks have different trainings."""
        for name, count in counts.items():
            if count % self._accumulate:
                need = f"a multiple of the {self._accumulate} batches of an update, with ranks"
                raise Error(f"[train.fit] {name}: got {count}, need {need}")
        notes = self.net.read_state(NOTES).tobytes() if NOTES in self.net.state_names else b""
        states = [(name, self.net.read_state(name).shape) for name in self.net.state_names]
        same = f"{counts} {self._accumulate} {states} {_core.isa()}".encode() + notes
        self._ranks.check_same(same, "[train.fit] ranks: got different trainings")

    def _resume(self) -> None:
        if self._folder is None:
            raise Error("[train.fit] resume: got no folder, need Trainer(.., folder=..)")
        if (checkpoint := checkpoint_in(self._folder)).exists():
            self.load(checkpoint)

    def _checkpoint(self, path: str | os.PathLike[str] | None) -> Path:
        if path is not None:
            return Path(path)
        if self._folder is None:
            raise Error("[train] path: got none, need one, or Trainer(.., folder=..)")
        return self._folder / CHECKPOINT


def checkpoint_in(folder: Path) -> Path:
    """Returns the path of the checkpoint in a training's folder, whether it exists or not."""
    new, old = folder / CHECKPOINT, folder / OLD_CHECKPOINT
    return old if old.exists() and not new.exists() else new


def _from(batches: Batches, first: int, steps: int) -> Iterator[tuple[int, Batch]]:
    """Yields numbers and batches from `first` up to `steps`. Raises Error if the iterable ends early."""
    if callable(batches):
        for number in range(first, steps):
            yield number, batches(number)
        return
    number = first - 1
    for number, batch in enumerate(islice(batches, first, steps), first):
        yield number, batch
    if number + 1 < steps and first < steps:
        raise Error(f"[train.fit] batches: got {number + 1}, need {steps}; a function of the number has no end")


def _fits(net: Model, batch: Batch) -> bool:
    """True if the batch has the model's inputs, shapes and dtypes."""
    arrays = {name: np.asarray(array) for name, array in batch.items()}
    return arrays.keys() == {port.name for port in net.inputs} and all(
        (arrays[port.name].shape, arrays[port.name].dtype) == (port.shape, port.dtype.numpy) for port in net.inputs
    )


def _tell(entry: dict[str, Any], sample: Callable[[], str | None] | None, log: Log | None) -> None:
    """Adds a sample to the entry of a finished batch, and writes it to the log."""
    if sample is not None:
        entry["sample"] = sample()
    if log is not None:
        log.write(entry)


def _is_gradient(state: str) -> bool:
    """True for an accumulated gradient: each rank has its own."""
    return state.endswith(GRADIENT)


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise Error(f"[train.fit] {name}: got {count!r}, need an integer from 0 on")
