"""Trains a decoder on a file of tokens: the options, stored in the checkpoint, and the Trainer."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from hexane.build import Tensor
from hexane.errors import Error
from hexane.graph import Array
from hexane.options import Options
from hexane.train.decoder.checkpoint import decoder_notes, lora_notes
from hexane.train.decoder.config import LlamaConfig, adapters_of
from hexane.train.decoder.encoded_base import check_base_mode
from hexane.train.decoder.lora import Base, Lora, array_of, merged_weight
from hexane.train.decoder.model import Llama, llama
from hexane.train.decoder.samples import Samples
from hexane.train.kernels import VARIANTS, Variant
from hexane.train.optimizers import adamw
from hexane.train.ranks import Communicator
from hexane.train.schedules import Schedule, constant, cosine, warm_up
from hexane.train.text.conversations import Conversations
from hexane.train.text.token_file import TokenFile
from hexane.train.text.tokenizer import Tokenizer
from hexane.train.text.windows import TokenWindows, rows_of, windows_in_order
from hexane.train.trainer import Trainer

SCHEDULES = ("constant", "cosine")
BETAS = (0.9, 0.95)
LEAST = 0.1  # A cosine ends at this fraction of lr.
MOST_WARM_UP = 100  # The most warm-up steps if warm_up is None.
SCALE = 256.0  # The scale of the loss on chips, which store tensors between layers in fp16.
KEPT = ("batch", "accumulate", "seed", "compress")  # Options that a resumed training cannot change.


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """How a decoder is trained. steps: updates of the weights, each from `accumulate` batches of `batch` rows. lr: the
    largest learning rate; schedule: "constant", or "cosine", which falls to a tenth of lr; warm_up: steps of rising
    learning rate; None: a tenth of `steps`, at most 100. clip: the largest global norm of the gradients; 0: no limit.
    seed: for the initial weights and the order of batches. loss_scale=None is 256 on chips, 1 on the host. target,
    numerics: see `hx.compile`. variant: for a chip, see `hx.train.kernels`. compress: the encoding of the weights under
    adapters, see `hx.train.llama`; None: not encoded.

    Raises Error for counts, names and encodings out of range, and for an option that needs another target. Rates and
    `clip` are not checked here.
    """

    steps: int = 1000
    batch: int = 1
    accumulate: int = 10
    lr: float = 3e-4
    schedule: str = "cosine"
    warm_up: int | None = None
    clip: float = 1.0
    weight_decay: float = 0.1
    seed: int = 0
    loss_scale: float | None = None
    target: str = "host"
    numerics: str = ""
    variant: Variant = "cpu-head"
    compress: str | None = None

    def __post_init__(self) -> None:
        """Replaces a warm_up of None by a number, so that a resumed run with more steps keeps it."""
        for name, least in (("steps", 1), ("batch", 1), ("accumulate", 1), ("seed", 0), ("warm_up", 0)):
            value = getattr(self, name)
            if value is None and name == "warm_up":
                object.__setattr__(self, name, min(MOST_WARM_UP, self.steps // 10))
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise Error(f"[train] {name}: got {value!r}, need an integer from {least} on")
        if self.schedule not in SCHEDULES:
            raise Error(f"[train] schedule: got {self.schedule!r}, need {' or '.join(map(repr, SCHEDULES))}")
        if self.variant not in VARIANTS:
            raise Error(f"[train] variant: got {self.variant!r}, need one of {', '.join(map(repr, VARIANTS))}")
        if self.variant != VARIANTS[0] and self.target == "host":
            raise Error(f"[train] variant: got {self.variant!r} for the host, need a chip as the target")
        if self.compress is not None:
            check_base_mode(self.compress)
            if self.target != "host":
                raise Error(f"[train] compress: got {self.compress!r} for {self.target}, need the host as the target")
        if self.warm_up is not None and self.warm_up >= self.steps:
            raise Error(f"[train] warm_up: got {self.warm_up}, need fewer than the {self.steps} steps")

    @property
    def rate(self) -> Schedule:
        """The learning rate as a function of the step."""
        first = self.warm_up or 0
        after = (
            constant(self.lr) if self.schedule == "constant" else cosine(self.lr, self.steps - first, self.lr * LEAST)
        )
        return warm_up(after, first) if first else after

    @property
    def scale(self) -> float:
        """The scale of the loss."""
        if self.loss_scale is not None:
            return self.loss_scale
        return 1.0 if self.target == "host" else SCALE


def resumed_options(notes: Mapping[str, Any], given: Mapping[str, Any], where: str) -> TrainingOptions:
    """Returns the options in a checkpoint, overridden by the given ones.

    Raises Error if `hexane train` did not write the notes, and if an option of `KEPT` changes: the batches would differ
    from an uninterrupted run's.
    """
    saved = notes.get("training")
    known = {one.name for one in fields(TrainingOptions)}
    if not isinstance(saved, Mapping) or not saved.keys() <= known:
        raise Error(f"{where}: got a checkpoint without the options of a training, need one that `hexane train` wrote")
    for name in KEPT:
        if name in given and given[name] != saved.get(name):
            raise Error(f"{where}: {name}: got {given[name]}, need {_shown(saved.get(name))}: the checkpoint's")
    return TrainingOptions(**{**saved, **given})


def _shown(value: object) -> object:
    return "none" if value is None else value


def _opened(data: str | os.PathLike[str] | TokenFile, config: LlamaConfig) -> TokenFile:
    return data if isinstance(data, TokenFile) else TokenFile(data, vocab=config.vocab)


class DecoderTraining:
    """A decoder, its data and its `Trainer`.

    config, weights, lora: see `hx.train.llama`; base: with lora, the base model. data, evaluation: token files;
    evaluated: the number of batches in an evaluation. folder: for log and checkpoints. tokens: the number of tokens
    that the data must have, from the run that is resumed; None: any. device: where a chip's programs run, see
    `hx.compile`. tokenizer, prompt: for sample texts; tokenizer None: no samples. communicator: see `Trainer`; its
    ranks share the rows of a batch.

    Raises Error for token files that do not fit the model, and as `Trainer` does.
    """

    model: Llama
    trainer: Trainer
    windows: TokenWindows | Conversations
    evaluation: list[dict[str, Array]] | None

    def __init__(
        self,
        config: LlamaConfig,
        weights: Mapping[str, Array | Tensor] | None,
        data: str | os.PathLike[str] | TokenFile,
        folder: str | os.PathLike[str],
        options: TrainingOptions,
        *,
        evaluation: str | os.PathLike[str] | TokenFile | None = None,
        evaluated: int = 32,
        tokens: int | None = None,
        threads: int | None = None,
        device: str = "auto",
        tokenizer: Tokenizer | None = None,
        prompt: str = "",
        lora: Lora | None = None,
        base: Base | None = None,
        communicator: Communicator | None = None,
    ) -> None:
        self.options = options
        rank, ranks = (communicator.Get_rank(), communicator.Get_size()) if communicator else (0, 1)
        mine = rows_of(options.batch, rank, ranks)
        rows = {"batch": options.batch, "seq": config.seq}
        tokens_read = _opened(data, config)
        kind = TokenWindows if tokens_read.starts is None else Conversations
        self.windows = kind(tokens_read, seed=options.seed, rank=rank, ranks=ranks, **rows)
        count = len(self.windows.tokens)
        if tokens is not None and count != tokens:
            raise Error(f"[train] {tokens_read.path}: got {count} tokens, need the {tokens} that the run began with")
        self.evaluation = None
        if evaluation is not None:
            held = _opened(evaluation, config)
            if held.starts is None:
                batches = windows_in_order(held, limit=evaluated, **rows)
                self.evaluation = [{name: array[mine] for name, array in one.items()} for one in batches]
            else:
                self.evaluation = Conversations(held, rank=rank, ranks=ranks, **rows).in_order(evaluated)
        self._samples = None
        if tokenizer is not None:
            self._samples = Samples(config, tokenizer, prompt, seed=options.seed, threads=threads)
        self.model = llama(
            config,
            weights=weights,
            batch=options.batch // ranks,
            seed=options.seed,
            lora=lora,
            compress=options.compress,
        )
        no_decay = "*norm.weight" if lora is None else ""
        self.trainer = Trainer(
            self.model.loss,
            list(self.model.params.values()),
            adamw(options.rate, betas=BETAS, weight_decay=options.weight_decay, no_decay=no_decay),
            clip=options.clip or None,
            accumulate=options.accumulate,
            loss_scale=options.scale,
            notes={
                "decoder": decoder_notes(config),
                "training": asdict(options),
                "data": {"tokens": count},
                **({} if lora is None or base is None else {"lora": lora_notes(lora, base)}),
            },
            folder=Path(folder),
            options=Options(target=options.target, numerics=options.numerics, device=device, threads=threads),
            programs=options.target != "host",
            variant=options.variant,
            communicator=communicator,
        )

    def run(
        self,
        *,
        evaluate_every: int,
        checkpoint_every: int,
        resume: bool,
        progress: bool | None = None,
        trace: Path | None = None,
        sample_every: int = 0,
        watch: Callable[[], Mapping[str, float]] | None = None,
    ) -> list[dict[str, Any]]:
        """Trains until `steps` are done, and returns the log entries of this call. evaluate_every, checkpoint_every,
        sample_every: in steps; trace, watch: see `Trainer.fit`.

        Raises Error as `Trainer.fit` does.
        """
        each = self.options.accumulate
        return self.trainer.fit(
            self.windows,
            self.options.steps * each,
            evaluate_every=evaluate_every * each if self.evaluation is not None else 0,
            evaluation=self.evaluation,
            checkpoint_every=checkpoint_every * each,
            resume=resume,
            progress=progress,
            tokens=self.options.batch * self.model.config.seq,
            trace=trace,
            sample=None if self._samples is None else self._sample,
            sample_every=0 if self._samples is None else sample_every * each,
            watch=watch,
        )

    def _sample(self) -> str | None:
        assert self._samples is not None
        return self._samples(self._weight, self.trainer.calls // self.options.accumulate)

    def weights(self) -> dict[str, Array]:
        """Returns the current weights by name, merged with the adapters."""
        return {name: self._weight(name) for name in self.model.config.shapes()}

    def adapters(self) -> dict[str, Array]:
        """Returns the current adapters by name; empty without lora."""
        return {} if self.model.lora is None else self._read(self.model.params)

    def _weight(self, name: str) -> Array:
        if self.model.lora is None:
            return self.trainer.net.read_state(name)
        own = self._read(one for one in adapters_of(name) if one in self.model.params)
        return merged_weight(name, array_of(self.model.frozen[name]), self.model.lora, own)

    def _read(self, names: Iterable[str]) -> dict[str, Array]:
        return {name: self.trainer.net.read_state(name) for name in names}
