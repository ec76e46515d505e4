"""Small models of CLIP and SigLIP, and their halves of texts, as transformers has them: their configs, seeded weights,
and folders of them. `clip_encoders.json` has what transformers computes; `python tests/support/clip_encoders.py` (with
torch and transformers) records it anew."""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

RECORD = Path(__file__).with_name("clip_encoders.json")
SEED, VOCAB, COUNT, END, SIDE = 7, 37, 11, 36, 12
_LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
_TEXT = {"vocab_size": VOCAB, "hidden_size": 24, "max_position_embeddings": 16, **_LAYERS}
_TEXT |= {"eos_token_id": END, "bos_token_id": 2, "pad_token_id": 1}
_IMAGE = {"hidden_size": 36, "image_size": SIDE, "patch_size": 4, **_LAYERS}


def _both(kind: str, name: str, text: dict[str, Any], image: dict[str, Any], **more: Any) -> dict[str, Any]:
    half = {"text_config": {**_TEXT, **text}, "vision_config": {**_IMAGE, **image}}
    return {"model_type": kind, "architectures": [name], **half, **more}


CASES: dict[str, dict[str, Any]] = {
    "clip": _both("clip", "CLIPModel", {}, {}, projection_dim=20),
    "clip with an old end": _both(
        "clip", "CLIPModel", {"eos_token_id": 2, "hidden_act": "gelu"}, {"hidden_act": "gelu"}, projection_dim=20
    ),
    "siglip": _both("siglip", "SiglipModel", {"projection_size": 36}, {}),
    "clip text": {"model_type": "clip_text_model", "architectures": ["CLIPTextModel"], **_TEXT},
    "clip text projection": {
        "model_type": "clip_text_model",
        "architectures": ["CLIPTextModelWithProjection"],
        "projection_dim": 10,
        **_TEXT,
    },
    "siglip text": {"model_type": "siglip_text_model", "architectures": ["SiglipTextModel"], **_TEXT},
}


def has_both(name: str) -> bool:
    return "vision_config" in CASES[name]


def ids() -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Three texts and their mask: a whole one, one with padding after its end, one with a second end and no padding."""
    found = np.random.default_rng(SEED).integers(3, END, (3, COUNT)).astype(np.int32)
    mask = np.ones((3, COUNT), np.int32)
    found[:, 0], found[0, -1], found[1, 5], found[2, 3], found[2, 8] = 2, END, END, END, END
    found[1, 6:], mask[1, 6:] = 1, 0
    return found, mask


def pixels() -> NDArray[np.float32]:
    return np.random.default_rng(SEED).standard_normal((2, 3, SIDE, SIDE)).astype(np.float32)


def inputs(name: str, masked: bool) -> dict[str, NDArray[Any]]:
    tokens, mask = ids()
    return {
        "input_ids": tokens,
        **({"attention_mask": mask} if masked else {}),
        **({"pixel_values": pixels()} if has_both(name) else {}),
    }


def tensors(shapes: dict[str, list[int]]) -> dict[str, NDArray[Any]]:
    """Seeded weights by the names and shapes of a file."""
    rng = np.random.default_rng(SEED)
    return {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in sorted(shapes.items())}


def write_folder(folder: Path, name: str, arrays: dict[str, Any], **changes: Any) -> Path:
    from safetensors.numpy import save_file

    folder.mkdir(exist_ok=True)
    save_file({key: np.asarray(one) for key, one in arrays.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**CASES[name], **changes}))
    return folder


def in_transformers(name: str) -> dict[str, Any]:
    """Shapes of the tensors that transformers writes, and its outputs from a folder of seeded ones, with a mask and
    without."""
    import torch
    import transformers
    from safetensors.numpy import load_file

    torch.set_num_threads(1)
    kind = getattr(transformers, CASES[name]["architectures"][0])
    outputs = {}
    with tempfile.TemporaryDirectory() as place:
        config = kind.config_class(**{key: one for key, one in CASES[name].items() if key != "model_type"})
        kind(config).save_pretrained(place)
        shapes = {key: list(one.shape) for key, one in load_file(f"{place}/model.safetensors").items()}
        save = dict(tensors(shapes))
        write_folder(Path(place), name, save)
        model = kind.from_pretrained(place, attn_implementation="eager").float().eval()
        for masked in (False, True):
            given = {key: torch.from_numpy(one) for key, one in inputs(name, masked).items()}
            with torch.no_grad():
                made = dict(
                    model(**{key: one.long() if one.dtype == torch.int32 else one for key, one in given.items()})
                )
                if has_both(name):
                    made = {
                        key: made[key] for key in ("logits_per_image", "logits_per_text", "text_embeds", "image_embeds")
                    }
                    text = model.get_text_features(input_ids=given["input_ids"].long())
                    image = model.get_image_features(pixel_values=given["pixel_values"])
                    made |= {"text_features": text.pooler_output, "image_features": image.pooler_output}
            for key, value in made.items():
                outputs[f"{key}{' masked' * masked}"] = [float(f"{one:.8g}") for one in value.numpy().reshape(-1)]
    return {"shapes": shapes, "outputs": outputs}


if __name__ == "__main__":
    sys.path.pop(0)  # transformers would take the modules here for packages of these names
    rows = [f"{json.dumps(name)}: {json.dumps(in_transformers(name))}" for name in CASES]
    Path(sys.argv[1] if len(sys.argv) > 1 else RECORD).write_text("{\n" + ",\n".join(rows) + "\n}\n")
