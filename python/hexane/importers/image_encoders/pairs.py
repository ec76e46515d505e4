"""CLIP and SigLIP folders with both encoders, one of texts and one of images. A text's vector is compared with an
image's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hexane import build as hx
from hexane.dtypes import DTYPES
from hexane.errors import Error
from hexane.graph import Array, Graph
from hexane.graph.origins import source_scope
from hexane.importers.encoders.config import short
from hexane.importers.encoders.families import HARMLESS as OF_TEXTS
from hexane.importers.encoders.files import CONFIG, FLOATS, json_object, tensors_in
from hexane.importers.encoders.graph import IDS, MASK
from hexane.importers.image_encoders.config import HARMLESS, ImageEncoderConfig, config_in
from hexane.importers.image_encoders.graph import EMBEDS, PIXELS, embedding_of, image_tensors, outputs_of
from hexane.importers.image_encoders.opened import check_images, image_graph, image_signature, image_weights
from hexane.importers.image_encoders.text_config import TextHalfConfig, text_config_in
from hexane.importers.image_encoders.text_graph import TEXT_EMBEDS, text_tensors, text_vector_of
from hexane.importers.image_encoders.texts import text_graph, text_shape, text_signature, text_weights
from hexane.importers.signature import Input, Signature, SpecialisationNeeded

FAMILIES = ("clip", "siglip")
OWN = ("text_config", "vision_config", "logit_scale_init_value", "text_config_dict", "vision_config_dict")
BY_IMAGE, BY_TEXT = "logits_per_image", "logits_per_text"
RESULTS = (BY_IMAGE, BY_TEXT, TEXT_EMBEDS, EMBEDS)


@dataclass(frozen=True, slots=True)
class PairFiles:
    """The text encoder and the image encoder, with weights by this package's names. The similarity of two vectors is
    scale * cosine + bias."""

    family: str
    text: TextHalfConfig
    text_weights: dict[str, Array]
    image: ImageEncoderConfig
    image_weights: dict[str, Array]
    scale: float
    bias: float


def holds_pair(folder: Path) -> bool:
    """True if a folder has a readable config.json that names one of the families."""
    if not (folder / CONFIG).is_file():
        return False
    try:
        return json_object(folder, CONFIG, "[encoder]").get("model_type") in list(FAMILIES)
    except Error:
        return False


def read_pair(folder: Path, stored: bool = False) -> PairFiles:
    """Returns both encoders in a folder. stored: see `read_encoder`.

    Raises Error for damaged files, for unsupported configs, and for missing or unexpected tensors.
    """
    where = f"[encoder] {folder}"
    given = json_object(folder, CONFIG, where)
    family = str(given["model_type"])
    _check(f"{where}/{CONFIG}", family, given)
    projected = family == "clip"
    text = text_config_in(f"{where}/{CONFIG}: text_config", _half(where, given, "text", projected))
    image = config_in(f"{where}/{CONFIG}: vision_config", _half(where, given, "vision", projected))
    if not projected and not image.probed:
        raise Error(f"{where}/{CONFIG}: vision_use_head: got false, need true: an image has no vector without it")
    arrays = dict(tensors_in(folder, where, stored))
    scale = float(np.exp(np.float32(_number(where, arrays, "logit_scale"))))
    bias = 0.0 if projected else _number(where, arrays, "logit_bias")
    of_texts = {name: arrays.pop(name) for name in list(arrays) if name.startswith(("text_model.", "text_projection."))}
    texts, images = text_weights(where, text, of_texts, stored), image_weights(where, image, arrays, stored)
    if texts["head.weight"].shape[0] != (images["head.weight"].shape[0] if projected else image.dim):
        raise Error(f"{where}: got vectors of texts and images of different lengths, need one length")
    return PairFiles(family, text, texts, image, images, scale, bias)


def _check(where: str, family: str, given: Mapping[str, Any]) -> None:
    """Raises Error for another architecture, and for fields that may change the results."""
    names = given.get("architectures") or ["Model"]
    known = ("Model", "CLIPModel" if family == "clip" else "SiglipModel")
    if not isinstance(names, list) or len(names) != 1 or names[0] not in known:
        raise Error(f"{where}: architectures: got {short(names)}, need {known[1]}")
    own = OWN if family == "clip" else OWN[:2]
    for name in sorted(given):
        unknown = name not in own and name not in HARMLESS and name not in OF_TEXTS
        if unknown and not name.startswith("_") and given[name] not in (None, False, {}):
            raise Error(f"{where}: {name}: got {short(given[name])}, need no such field, as it may change the numbers")


def _half(where: str, given: Mapping[str, Any], half: str, projected: bool) -> dict[str, Any]:
    """Returns the config fields of one encoder, with its model_type. Old CLIP folders store the fields twice; those
    of `.._config_dict` count."""
    fields = given.get(f"{half}_config_dict") or given.get(f"{half}_config") or {}
    if not isinstance(fields, dict):
        raise Error(f"{where}: {half}_config: got {short(fields)}, need an object")
    names = ["ModelWithProjection" if projected else "Model"]
    return {**fields, "model_type": f"{given['model_type']}_{half}_model", "architectures": names}


def _number(where: str, arrays: dict[str, Array], name: str) -> float:
    array = arrays.pop(name, None)
    if array is None or array.size != 1 or array.dtype.name not in FLOATS:
        raise Error(f"{where}: got no number {name!r}, need it: it scales similarities")
    return float(array.astype(np.float32).reshape(()))


class OpenedPair:
    """The model in a folder. Functions: `texts` and `images` are the encoders, and `main` is both with their
    similarities. The model's weights are read for the first graph or signature, and kept."""

    functions = ("main", "texts", "images")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: PairFiles | None = None

    @property
    def files(self) -> PairFiles:
        if self._read is None:
            self._read = read_pair(self.folder)
        return self._read

    def signature(self, name: str) -> Signature:
        files = self.files
        texts, images = text_signature(files.text), image_signature(files.image, outputs_of(files.image, True))
        if name != "main":
            return texts if name == "texts" else images
        # The batches of texts and of images have separate sizes.
        of_texts, optional = ([_renamed(one) for one in part] for part in (texts.inputs, texts.optional))
        dims = {BY_IMAGE: ("batch", "texts"), BY_TEXT: ("texts", "batch"), TEXT_EMBEDS: ("texts", None)}
        results = tuple(Input(one, DTYPES["fp32"], dims.get(one, ("batch", None))) for one in RESULTS)
        return Signature((*of_texts, *images.inputs), RESULTS, tuple(optional), results)

    def graph(self, name: str, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Array]) -> Graph:
        files = self.files
        if name == "texts":
            return text_graph(files.text, files.text_weights, shapes, values)
        if name == "images":
            outputs = outputs_of(files.image, True)
            return image_graph(files.image, files.image_weights, outputs, shapes, values)
        if missing := [one for one in (IDS, PIXELS) if one not in shapes and not values]:
            c = files.image
            need = f"{IDS}:2x16 and {PIXELS}:1x{c.channels}x{c.size}x{c.size}"
            raise SpecialisationNeeded(
                f"[open] got no shape for {', '.join(missing)}, need those of {need}", (*missing,)
            )
        of_images = {key: shape for key, shape in shapes.items() if key == PIXELS}
        count = text_shape({key: shape for key, shape in shapes.items() if key != PIXELS}, values)
        return pair(files, count, check_images(files.image, of_images, values), MASK in shapes)


def _renamed(one: Input) -> Input:
    return Input(one.name, one.dtype, ("texts", "caption"))


def pair(files: PairFiles, texts: tuple[int, int], images: int, masked: bool) -> Graph:
    """Returns a graph from input_ids (texts, tokens) and pixel_values (images, channels, size, size) to similarities
    (images, texts) and (texts, images), and the vectors of texts and images, each of length 1."""
    text = text_tensors(files.text, files.text_weights, *texts, masked)[text_vector_of(files.text)]
    name = embedding_of(files.image, True)
    assert name is not None
    image = image_tensors(files.image, files.image_weights, images)[name]()
    with source_scope("similarity"):
        text, image = (one / hx.reduce_l2_norm(one, axes=(1,), keep_dims=True) for one in (text, image))
        logits = hx.matmul(text, hx.transpose(image, perm=(1, 0))) * files.scale + files.bias
        outputs = {BY_IMAGE: hx.transpose(logits, perm=(1, 0)), BY_TEXT: logits, TEXT_EMBEDS: text, EMBEDS: image}
    return hx.graph(outputs, name=files.family)
