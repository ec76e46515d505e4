"""One page of facts about a Whisper model: its architecture, languages and speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hexane.graph.decisions import counted
from hexane.importers.speech import SpeechConfig
from hexane.llm.encoder_facts import EncoderOnChip, on_chip
from hexane.llm.speech import SpeechModel
from hexane.llm.speech_prompt import code_of


@dataclass(frozen=True, slots=True)
class SpeechFacts:
    """A speech model's facts. shape: in words; window: seconds of sound; tokens: the most tokens of a text with its
    prompt; languages: codes, empty for a model with one language; weights: bytes in fp32; milliseconds: of the encoder
    for a window; tokens_per_second: measured on this CPU with `threads`; chips: estimates of the encoder."""

    model: str
    family: str
    shape: str
    parameters: int
    window: float
    tokens: int
    languages: tuple[str, ...]
    tasks: tuple[str, ...]
    weights: int
    threads: int
    dtype: str
    milliseconds: float
    tokens_per_second: float
    chips: tuple[EncoderOnChip, ...]

    def record(self) -> dict[str, Any]:
        """The facts as a JSON object."""
        lists = {name: [*getattr(self, name)] for name in ("languages", "tasks")}
        return {**asdict(self), **lists, "chips": [{**asdict(one), "left": [*one.left]} for one in self.chips]}


def speech_facts(model: SpeechModel, targets: Sequence[str] = (), *, dtype: str = "fp32") -> SpeechFacts:
    """Returns facts about a loaded Whisper model, which runs for a moment to be measured.

    targets: chips for which the encoder is estimated. dtype: the dtype with which the model was loaded.
    Raises Error for an unknown chip.
    """
    encoder, token = model.milliseconds()
    prompt = model.prompt
    return SpeechFacts(
        model=str(model.path),
        family="whisper",
        shape=_shape(model.config),
        parameters=model.parameters,
        window=model.window,
        tokens=model.config.tokens,
        languages=tuple(sorted(map(code_of, prompt.languages))),
        tasks=tuple(prompt.tasks) or ("transcribe",),
        weights=4 * model.parameters,
        threads=model.threads,
        dtype=dtype,
        milliseconds=encoder,
        tokens_per_second=1e3 / token,
        chips=tuple(on_chip(model.graph(), target) for target in targets),
    )


def _shape(c: SpeechConfig) -> str:
    def half(layers: int, heads: int, hidden: int) -> str:
        return f"{counted(layers, 'layer')} of {c.dim} channels, {heads} heads of {c.dim // heads}, MLP of {hidden}"

    return (
        f"encoder of {half(c.encoder_layers, c.encoder_heads, c.encoder_hidden)}, {c.mels} mel bands; decoder of"
        f" {half(c.decoder_layers, c.decoder_heads, c.decoder_hidden)} ({c.activation}); {c.vocab:,} tokens"
    )
