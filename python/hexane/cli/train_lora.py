"""`hexane train --lora`: the requested adapters, or a resumed run's adapters."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hexane.build import Tensor
from hexane.errors import Error
from hexane.graph import Array
from hexane.train.decoder import LlamaConfig, Lora
from hexane.train.decoder.checkpoint import Adapted
from hexane.train.decoder.config import STORIES
from hexane.train.decoder.lora import Base, hash_of

FOLDER = "adapter"  # a folder inside the folder of the run


@dataclass(frozen=True, slots=True)
class AskedLora:
    """The options about adapters. None: not given."""

    rank: int | None = None
    alpha: float | None = None
    targets: str | None = None

    @property
    def made(self) -> Lora | None:
        """The requested adapters. Raises Error for values out of range, and for options of adapters without a rank."""
        if self.rank is None:
            for name, value in (("--lora-alpha", self.alpha), ("--lora-targets", self.targets)):
                if value is not None:
                    raise Error(
                        f"[train] {name}: got it without --lora, need the rank of the adapters, such as --lora 8"
                    )
            return None
        targets = {} if self.targets is None else {"targets": tuple(t.strip() for t in self.targets.split(","))}
        try:
            return Lora(self.rank, self.alpha, **targets)
        except Error as error:
            raise Error(f"[train] --lora: {str(error).removeprefix('[train.Lora] ')}") from None

    def check_kept(self, where: str, kept: Lora | None) -> None:
        """Raises Error if a given option differs from the checkpoint's."""
        asked = (
            self.made if kept is None or self.rank is not None else AskedLora(kept.rank, self.alpha, self.targets).made
        )
        if asked is None:
            return
        if kept is None:
            raise Error(f"{where}: got a checkpoint of all weights with --lora, need one of adapters, or no --lora")
        for name, given in (("rank", self.rank), ("alpha", self.alpha), ("targets", self.targets)):
            got, need = getattr(asked, name), getattr(kept, name)
            if given is not None and got != need:
                raise Error(
                    f"{where}: {name} of the adapters: got {_shown(got)}, need {_shown(need)}: the checkpoint's"
                )


def base_of(model: str | None, config: LlamaConfig, weights: Mapping[str, Array | Tensor] | None, lora: Lora) -> Base:
    """Returns the base of a new run. Raises Error for a model without trained weights, and a rank above its sizes."""
    if model is None or weights is None:
        got = "no --model" if model is None else f"--model {model}, a new one"
        raise Error(f"[train] --lora: got {got}, need --model with the file, folder or checkpoint that is adapted")
    try:
        lora.shapes(config)
    except Error as error:
        raise Error(f"[train] --lora: {str(error).removeprefix('[train.Lora] ')}") from None
    return Base(model, hash_of(config, weights))


def base_path(where: str, model: str | None, kept: Adapted) -> str:
    """Returns the path of a resumed run's base model. Raises Error if the path does not exist."""
    path = kept.base.path if model is None else model
    if model in STORIES or not Path(path).exists():
        raise Error(f"{where}: got no base model {path}, need the one that the adapters belong to: --model PATH")
    return path


def _shown(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)
