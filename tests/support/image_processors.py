"""Processors of images of transformers. `image_processors.json` has what they make of seeded images; `python
tests/support/image_processors.py` (with torch, torchvision and transformers) records it anew."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

RECORD = Path(__file__).with_name("image_processors.json")
SIDE, STEP = 14, 9  # of the images that come out, and of the numbers that are recorded
SHAPES = ((37, 53), (20, 11), (14, 14), (6, 9))
_SQUARE = {"height": SIDE, "width": SIDE}

# Fields of preprocessor_config.json, by the class and a word on it.
CASES: dict[str, dict[str, Any]] = {
    "CLIP": {"size": {"shortest_edge": SIDE}, "crop_size": _SQUARE},
    "CLIP of integers": {"size": 15, "crop_size": SIDE, "resample": 2},
    "CLIP padded": {"size": {"shortest_edge": 9}, "crop_size": _SQUARE},
    "ViT": {"size": _SQUARE},
    "ViT of an integer": {"size": SIDE, "resample": 3, "image_mean": [0.485, 0.456, 0.406], "image_std": [0.2] * 3},
    "ViT scaled": {"size": _SQUARE, "do_normalize": False, "rescale_factor": 0.01},
    "DeiT": {"size": {"height": 19, "width": 17}, "crop_size": _SQUARE},
    "DeiT unscaled": {"size": _SQUARE, "crop_size": _SQUARE, "do_rescale": False},
    "Siglip": {"size": _SQUARE},
}


def image(shape: tuple[int, int]) -> NDArray[np.uint8]:
    """Waves and noise: neighbours are alike, as in a photo."""
    height, width = shape
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / (3 + c)) * np.cos(y / (4 + c)) * 100 + 127 for c in range(3)]
    noise = np.random.default_rng(height).integers(-28, 29, (height, width, 3))
    return (np.stack(waves, -1) + noise).clip(0, 255).astype(np.uint8)


def fields(name: str) -> dict[str, Any]:
    return {"image_processor_type": f"{name.split()[0]}ImageProcessor", **CASES[name]}


def in_transformers(name: str) -> list[list[float]]:
    import transformers

    made = getattr(transformers, f"{name.split()[0]}ImageProcessor")(**CASES[name])
    found = []
    for shape in SHAPES:
        array = made(image(shape), return_tensors="np", input_data_format="channels_last")["pixel_values"][0]
        assert array.shape == (3, SIDE, SIDE)
        found.append([float(f"{one:.7g}") for one in array.reshape(-1)[::STEP]])
    return found


if __name__ == "__main__":
    sys.path.pop(0)  # transformers would take the modules here for packages of these names
    rows = [f"{json.dumps(name)}: {json.dumps(in_transformers(name))}" for name in CASES]
    Path(sys.argv[1] if len(sys.argv) > 1 else RECORD).write_text("{\n" + ",\n".join(rows) + "\n}\n")
