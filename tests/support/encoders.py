"""Small text encoders of the families of transformers: their configs, seeded weights, and folders of them.
`encoders.json` has what transformers computes; `python tests/support/encoders.py` (with torch and transformers) records
it anew."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

RECORD = Path(__file__).with_name("encoders.json")
SEED, VOCAB, COUNT = 11, 37, 13
_SIZES = {"vocab_size": VOCAB, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3}
_SIZES |= {"num_attention_heads": 3, "max_position_embeddings": 40}
_DISTIL = {"vocab_size": VOCAB, "dim": 24, "hidden_dim": 40, "n_layers": 3, "n_heads": 3}
_DISTIL |= {"max_position_embeddings": 40}
_THREE = {"id2label": {"0": "a", "1": "b", "2": "c"}}


def _of(kind: str, name: str, **more: Any) -> dict[str, Any]:
    sizes = _DISTIL if kind == "distilbert" else _SIZES
    return {"model_type": kind, "architectures": [name], **sizes, **more}


CASES: dict[str, dict[str, Any]] = {
    "bert": _of("bert", "BertModel", type_vocab_size=2, pad_token_id=0),
    "bert tanh gelu": _of("bert", "BertModel", hidden_act="gelu_new", layer_norm_eps=0.1, type_vocab_size=3),
    "bert masked": _of("bert", "BertForMaskedLM", hidden_act="relu"),
    "bert pre-training": _of("bert", "BertForPreTraining"),
    "bert labels": _of("bert", "BertForSequenceClassification", **_THREE),
    "bert tokens": _of("bert", "BertForTokenClassification", **_THREE),
    "bert answers": _of("bert", "BertForQuestionAnswering"),
    "distilbert": _of("distilbert", "DistilBertModel"),
    "distilbert masked": _of("distilbert", "DistilBertForMaskedLM", activation="relu"),
    "distilbert labels": _of("distilbert", "DistilBertForSequenceClassification", **_THREE),
    "roberta": _of("roberta", "RobertaModel", type_vocab_size=1, pad_token_id=1),
    "roberta other padding": _of("roberta", "RobertaModel", type_vocab_size=1, pad_token_id=5),
    "roberta masked": _of("roberta", "RobertaForMaskedLM", type_vocab_size=1, hidden_act="silu"),
    "roberta labels": _of("roberta", "RobertaForSequenceClassification", type_vocab_size=1, **_THREE),
    "xlm-roberta": _of("xlm-roberta", "XLMRobertaModel", type_vocab_size=1),
    "xlm-roberta tokens": _of("xlm-roberta", "XLMRobertaForTokenClassification", type_vocab_size=1, **_THREE),
    "camembert": _of("camembert", "CamembertModel", type_vocab_size=1),
    "mpnet": _of("mpnet", "MPNetModel"),
    "mpnet masked": _of("mpnet", "MPNetForMaskedLM"),
    "mpnet labels": _of("mpnet", "MPNetForSequenceClassification", **_THREE),
}
LONG = {"mpnet": 150, "roberta": 33}  # tokens of a further input: far positions


def padding(name: str) -> int:
    own = CASES[name]
    return int(own.get("pad_token_id", 0 if own["model_type"] in ("bert", "distilbert") else 1))


def config_fields(name: str) -> dict[str, Any]:
    """config.json of a case. MPNet has room for its far positions."""
    own = dict(CASES[name])
    if name == "mpnet":
        own["max_position_embeddings"] = 160
    return own


def inputs(name: str, count: int = COUNT) -> dict[str, NDArray[np.int32]]:
    """Three texts: a whole one, and one with padding behind it, and one with padding in front."""
    rng = np.random.default_rng(SEED)
    ids = rng.integers(6, VOCAB, (3, count)).astype(np.int32)
    mask = np.ones((3, count), np.int32)
    mask[1, count - 5 :] = mask[2, :3] = 0
    ids[mask == 0] = padding(name)
    found = {"input_ids": ids, "attention_mask": mask}
    if CASES[name]["model_type"] not in ("distilbert", "mpnet") and CASES[name].get("type_vocab_size", 2) > 1:
        found["token_type_ids"] = rng.integers(0, 2, (3, count)).astype(np.int32)
    return found


def tensors(shapes: dict[str, list[int]]) -> dict[str, NDArray[Any]]:
    """Seeded weights by the names and shapes that transformers has."""
    rng = np.random.default_rng(SEED)
    return {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in sorted(shapes.items())}


def write_folder(folder: Path, name: str, arrays: dict[str, Any], **changes: Any) -> Path:
    from safetensors.numpy import save_file

    folder.mkdir(exist_ok=True)
    save_file(arrays, folder / "model.safetensors")
    fields = {**config_fields(name), **changes}
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def real(name: str, count: int, array: NDArray[Any]) -> NDArray[Any]:
    """The rows of tokens that are no padding; arrays by text as they are."""
    per_token = array.ndim > 1 and array.shape[1] == count and count != 3
    return array[inputs(name, count)["attention_mask"] == 1] if per_token else array


def in_transformers(name: str) -> dict[str, Any]:
    """Shapes of the weights as a file has them, and the outputs at tokens that are no padding."""
    import torch
    import transformers

    torch.set_num_threads(1)
    config = transformers.AutoConfig.for_model(**config_fields(name))
    model = getattr(transformers, CASES[name]["architectures"][0])(config).float().eval()
    model.set_attn_implementation("eager")
    state, seen, shapes = model.state_dict(), set(), {}
    for key, value in state.items():
        if value.data_ptr() not in seen:  # tied tensors are stored once
            seen.add(value.data_ptr())
            shapes[key] = list(value.shape)
    outputs = {}
    with torch.no_grad():
        for key, array in tensors(shapes).items():
            state[key].copy_(torch.from_numpy(array))
        model.tie_weights()
        for count in (COUNT, *([LONG[name]] if name in LONG else [])):
            made = model(**{key: torch.from_numpy(value).long() for key, value in inputs(name, count).items()})
            for key, value in made.items():
                rows = real(name, count, value.numpy())
                rows = rows[::4] if rows.size > 300 else rows
                key = key.replace("prediction_logits", "logits")
                numbers = [float(f"{one:.8g}") for one in rows.reshape(-1)]
                outputs[f"{key} of {count}"] = numbers
    outputs.pop(f"seq_relationship_logits of {COUNT}", None)
    return {"shapes": shapes, "outputs": outputs}


if __name__ == "__main__":
    sys.path.pop(0)  # transformers would take the modules here for packages of these names
    rows = [f"{json.dumps(name)}: {json.dumps(in_transformers(name))}" for name in CASES]
    Path(sys.argv[1] if len(sys.argv) > 1 else RECORD).write_text("{\n" + ",\n".join(rows) + "\n}\n")
