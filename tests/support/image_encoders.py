"""Small image encoders of transformers: their configs, seeded weights, and folders of them. `image_encoders.json` has
what transformers computes; `python tests/support/image_encoders.py` (with torch and transformers) records it anew."""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

RECORD = Path(__file__).with_name("image_encoders.json")
SEED = 5
_SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
_SIZES |= {"image_size": 14, "patch_size": 4}
_THREE = {"id2label": {"0": "a", "1": "b", "2": "c"}}


def _of(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"model_type": kind, "architectures": [name], **_SIZES, **more}


CASES: dict[str, dict[str, Any]] = {
    "vit": _of("vit", "ViTModel", layer_norm_eps=0.1),
    "vit labels": _of("vit", "ViTForImageClassification", qkv_bias=False, hidden_act="gelu_new", **_THREE),
    "deit": _of("deit", "DeiTModel", num_channels=1),
    "deit labels": _of("deit", "DeiTForImageClassification", **_THREE),
    "deit teacher": _of("deit", "DeiTForImageClassificationWithTeacher", **_THREE),
    "clip": _of("clip_vision_model", "CLIPVisionModel"),
    "clip projection": _of("clip_vision_model", "CLIPVisionModelWithProjection", projection_dim=10),
    "siglip": _of("siglip_vision_model", "SiglipVisionModel"),
    "siglip without head": _of("siglip_vision_model", "SiglipVisionModel", vision_use_head=False, hidden_act="relu"),
}


def pixels(name: str) -> NDArray[np.float32]:
    shape = (2, CASES[name].get("num_channels", 3), 14, 14)
    return np.random.default_rng(SEED).standard_normal(shape).astype(np.float32)


def tensors(shapes: dict[str, list[int]]) -> dict[str, NDArray[Any]]:
    """Seeded weights by the names and shapes of a file."""
    rng = np.random.default_rng(SEED)
    return {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in sorted(shapes.items())}


def write_folder(folder: Path, name: str, arrays: dict[str, Any], **changes: Any) -> Path:
    from safetensors.numpy import save_file

    folder.mkdir(exist_ok=True)
    save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({**CASES[name], **changes}))
    return folder


def in_transformers(name: str) -> dict[str, Any]:
    """Shapes of the tensors that transformers writes, and its outputs from a folder of seeded ones."""
    import torch
    import transformers
    from safetensors.numpy import load_file

    torch.set_num_threads(1)
    kind = getattr(transformers, CASES[name]["architectures"][0])
    with tempfile.TemporaryDirectory() as place:
        config = kind.config_class(**{key: one for key, one in CASES[name].items() if key != "model_type"})
        kind(config).save_pretrained(place)
        shapes = {key: list(one.shape) for key, one in load_file(f"{place}/model.safetensors").items()}
        write_folder(Path(place), name, dict(tensors(shapes)))
        model = kind.from_pretrained(place, attn_implementation="eager").float().eval()
        with torch.no_grad():
            made = model(pixel_values=torch.from_numpy(pixels(name)))
    outputs = {
        key: [float(f"{one:.8g}") for one in value.numpy().reshape(-1)]
        for key, value in made.items()
        if value is not None and key not in ("cls_logits", "distillation_logits")
    }
    return {"shapes": shapes, "outputs": outputs}


if __name__ == "__main__":
    sys.path.pop(0)  # transformers would take the modules here for packages of these names
    rows = [f"{json.dumps(name)}: {json.dumps(in_transformers(name))}" for name in CASES]
    Path(sys.argv[1] if len(sys.argv) > 1 else RECORD).write_text("{\n" + ",\n".join(rows) + "\n}\n")
