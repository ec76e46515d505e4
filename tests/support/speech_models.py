"""Small Whispers of transformers: their configs, seeded weights, sounds, and folders of them. `speech_models.json` has
what transformers computes; `python tests/support/speech_models.py` (with torch and transformers) records it anew."""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

RECORD = Path(__file__).with_name("speech_models.json")
SEED, RATE, VOCAB, STEPS = 11, 16000, 120, 70
START, END, NO_TIMES = 100, 101, 119
LANGUAGES = {"<|en|>": 102, "<|de|>": 103, "<|fr|>": 104}
TASKS = {"translate": 117, "transcribe": 118}
_SIZES = {"vocab_size": VOCAB, "d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "num_mel_bins": 80}
_SIZES |= {"encoder_attention_heads": 3, "decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 32}
_SIZES |= {"max_source_positions": 50, "max_target_positions": 90, "decoder_start_token_id": START}
_SIZES |= {"eos_token_id": END, "bos_token_id": END, "pad_token_id": END, "begin_suppress_tokens": None}


def _of(**more: Any) -> dict[str, Any]:
    return {"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"], **_SIZES, **more}


CASES: dict[str, dict[str, Any]] = {
    "whisper": _of(),
    "whisper scaled": _of(scale_embedding=True, activation_function="relu", encoder_layers=1, decoder_layers=3),
    "whisper large": _of(num_mel_bins=128, tie_word_embeddings=False, activation_function="gelu_new"),
}
_TEXTS = {"decoder_start_token_id": START, "eos_token_id": END, "pad_token_id": END, "bos_token_id": END}
_TEXTS |= {"max_length": STEPS, "no_timestamps_token_id": NO_TIMES, "return_timestamps": False}
_MANY = {**_TEXTS, "is_multilingual": True, "lang_to_id": LANGUAGES, "task_to_id": TASKS}
# generation_config.json by name, with the arguments of `generate`.
GENERATIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "detected": (
        {**_MANY, "suppress_tokens": [START, 3, 5, *range(102, 120)], "begin_suppress_tokens": [7, END]},
        {"task": "transcribe"},
    ),
    "german": ({**_MANY, "suppress_tokens": [*range(100, 120)]}, {"task": "transcribe", "language": "de"}),
    "translated": ({**_MANY, "suppress_tokens": [*range(100, 120)]}, {"task": "translate", "language": "fr"}),
    "old": ({**_MANY, "forced_decoder_ids": [[1, None], [2, TASKS["transcribe"]]]}, {"task": "transcribe"}),
    "forced": ({**_MANY, "forced_decoder_ids": [[1, LANGUAGES["<|de|>"]], [2, TASKS["translate"]]]}, {}),
    "own": ({**_MANY, "language": "fr", "task": "translate"}, {}),
    "ended": ({**_MANY, "eos_token_id": [END, 34, 40, 8]}, {"task": "transcribe"}),
    "short": ({**_MANY, "max_new_tokens": 9}, {"task": "transcribe"}),
    "english": ({**_TEXTS, "is_multilingual": False, "forced_decoder_ids": [[1, NO_TIMES]]}, {}),
}
# Samples of sounds of the small models' window of 1 s.
LENGTHS, EACH = (1, 399, 400, 8000, 15999, 16000), 37


def features_config(name: str) -> dict[str, Any]:
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": "WhisperProcessor",
        "feature_size": CASES[name].get("num_mel_bins", 80),
        "chunk_length": 1,
        "n_fft": 400,
        "hop_length": 160,
        "sampling_rate": RATE,
        "padding_value": 0.0,
        "return_attention_mask": False,
    }


def sound(length: int, seed: int = SEED) -> NDArray[np.float32]:
    """Tones that come and go, and noise."""
    rng = np.random.default_rng(seed)
    time = np.arange(length) / RATE
    tones = sum(np.sin(2 * np.pi * (f * time + rng.random())) * np.sin(time * f / 60) for f in (220, 870, 3100))
    return (0.2 * tones + 0.01 * rng.standard_normal(length)).astype(np.float32)


def features(name: str) -> NDArray[np.float32]:
    """Two windows."""
    shape = (2, CASES[name]["num_mel_bins"], 2 * CASES[name]["max_source_positions"])
    return np.random.default_rng(SEED).standard_normal(shape).astype(np.float32)


def ids() -> NDArray[np.int32]:
    return np.random.default_rng(SEED).integers(0, VOCAB, (2, 7)).astype(np.int32)


def tensors(shapes: dict[str, list[int]]) -> dict[str, NDArray[Any]]:
    """Seeded weights by the names and shapes of a file, of a size with which texts depend on sound and prompt."""
    rng = np.random.default_rng(SEED)
    found = {}
    for name, shape in sorted(shapes.items()):
        scale = 1.0 if "embed" in name else 0.5 if "encoder_attn" in name else 0.3
        found[name] = rng.normal(0, scale, shape).astype(np.float32)
        if name == "model.decoder.layer_norm.bias":
            found[name] *= 0
        elif "layer_norm.weight" in name and name != "model.decoder.layer_norm.weight":
            found[name] += 1
    return found


def write_folder(
    folder: Path, name: str, arrays: dict[str, Any], generation: str | dict[str, Any] = "detected", **changes: Any
) -> Path:
    from safetensors.numpy import save_file

    folder.mkdir(exist_ok=True)
    save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({**CASES[name], **changes}))
    (folder / "preprocessor_config.json").write_text(json.dumps(features_config(name)))
    fields = GENERATIONS[generation][0] if isinstance(generation, str) else generation
    (folder / "generation_config.json").write_text(json.dumps(fields))
    return folder


def _numbers(array: Any) -> list[float]:
    return [float(f"{one:.7g}") for one in np.asarray(array).reshape(-1)]


def in_transformers(name: str) -> dict[str, Any]:
    """Shapes of the tensors that transformers writes, and its results from a folder of seeded ones."""
    import torch
    from safetensors.numpy import load_file
    from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

    torch.set_num_threads(1)
    fields = {key: one for key, one in CASES[name].items() if key not in ("model_type", "architectures")}
    with tempfile.TemporaryDirectory() as place:
        WhisperForConditionalGeneration(WhisperConfig(**fields)).save_pretrained(place)
        shapes = {key: list(one.shape) for key, one in load_file(f"{place}/model.safetensors").items()}
        arrays, models = dict(tensors(shapes)), {}
        for key in GENERATIONS:
            write_folder(Path(place), name, arrays, key)
            made = WhisperForConditionalGeneration.from_pretrained(place, attn_implementation="eager")
            models[key] = made.float().eval()
        extract = WhisperFeatureExtractor.from_pretrained(place)
    given = torch.from_numpy(features(name))
    found: dict[str, Any] = {"shapes": shapes}
    with torch.no_grad():
        made = models["detected"](input_features=given, decoder_input_ids=torch.from_numpy(ids()).long())
        found["states"] = _numbers(made.encoder_last_hidden_state)
        found["logits"] = _numbers(made.logits)

        def extracted(length: int) -> Any:
            return extract(sound(length), sampling_rate=RATE, return_tensors="pt").input_features

        # Some of the numbers, and the mean of all.
        rows = {str(length): extracted(length).numpy() for length in LENGTHS}
        found["features"] = {key: _numbers(one.reshape(-1)[::EACH]) for key, one in rows.items()}
        found["means"] = {key: float(np.mean(one, dtype=np.float64)) for key, one in rows.items()}
        found["texts"] = {}
        for key, model in models.items():
            found["texts"][key] = model.generate(extracted(16000), **GENERATIONS[key][1])[0].tolist()
    return found


if __name__ == "__main__":
    sys.path.pop(0)  # transformers would take the modules here for packages of these names
    rows = [f"{json.dumps(name)}: {json.dumps(in_transformers(name))}" for name in CASES]
    Path(sys.argv[1] if len(sys.argv) > 1 else RECORD).write_text("{\n" + ",\n".join(rows) + "\n}\n")
