"""The files of a Core ML model: a package (`NAME.mlpackage`), a compiled model (`NAME.mlmodelc`), or a bare `.mlmodel`.

Paths in a model's files may not lead out of its folder.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from hexane.errors import Error, UnsupportedError
from hexane.importers.coreml.schema import messages
from hexane.importers.files import open_inside, open_regular, read_all, read_view

NETWORKS = ("neuralNetwork", "neuralNetworkClassifier", "neuralNetworkRegressor")
MODEL_PATH = "@model_path/"
MOST_BYTES = 1 << 31  # largest size of a protobuf message
LFS = b"version https://git-lfs"


@dataclass(frozen=True, slots=True)
class Package:
    """An open package. spec: the Model message; None for MIL text. folder: the model's folder, which has the weights;
    None for a bare file. inside: the path of @model_path in this folder. text: the MIL text of a compiled model, ""
    otherwise. usual: a compiled model's default function, "" if it names none."""

    path: Path
    spec: Any
    folder: Path | None
    inside: str = ""
    text: str = ""
    usual: str = ""
    _files: dict[str, memoryview] = field(default_factory=dict, repr=False, compare=False)  # weight files by location

    @property
    def is_network(self) -> bool:
        """True for a neural network, the format before ML programs."""
        return self.spec is not None and network_of(self.spec) is not None

    @property
    def is_program(self) -> bool:
        return self.spec is not None and self.spec.HasField("mlProgram")

    @property
    def is_suppression(self) -> bool:
        """True for a model that only performs non-maximum suppression."""
        return self.spec is not None and self.spec.HasField("nonMaximumSuppression")

    @property
    def is_transform(self) -> bool:
        """True for a feature transform or a linear model."""
        return self.spec is not None and bool(transform_of(self.spec))

    @property
    def is_pipeline(self) -> bool:
        return self.spec is not None and pipeline_of(self.spec) is not None

    @property
    def stages(self) -> "dict[str, Package]":
        """Returns the models of a pipeline by name, all in the pipeline's folder, and an empty dict for other
        models."""
        if not self.is_pipeline:
            return {}
        return {name: replace(self, spec=model) for name, model in stages_of(self.spec).items()}

    def weights(self, name: str) -> memoryview:
        """Returns the bytes of a weight file. The file is read once, and constants of 8 bits or more are
        views of its bytes."""
        if self.folder is None:
            raise Error(f"got the file {name!r} in a model without a folder, need a package (.mlpackage)")
        if not name.startswith(MODEL_PATH):
            raise Error(f"got the path {name!r}, need one that begins with {MODEL_PATH}")
        location = str(PurePosixPath(self.inside) / name.removeprefix(MODEL_PATH))
        if location not in self._files:
            opened = open_inside(self.folder, location, "[coreml] weights")
            self._files[location] = read_view(opened, f"[coreml] {name}")
        return self._files[location]


def network_of(spec: Any) -> Any:
    """Returns the neural network of a model, or None for another kind of model."""
    return next((getattr(spec, name) for name in NETWORKS if spec.HasField(name)), None)


def open_package(path: Path) -> Package:
    """Opens a model. Raises Error for a damaged folder, and UnsupportedError for a kind of model without a reader."""
    if not path.is_dir():
        data = read_all(open_regular(path, f"[coreml] {path}", "Core ML model"), f"[coreml] {path}")
        return _checked(Package(path, _parsed(data, str(path)), None))
    if (path / "model.mil").exists() or path.suffix.lower() == ".mlmodelc":
        return _compiled(path)
    location = _root(path)
    where = f"[coreml] {path}: {location}"
    data = read_all(open_inside(path, f"Data/{location}", f"[coreml] {path}"), where)
    parent = str(PurePosixPath("Data") / PurePosixPath(location).parent)
    return _checked(Package(path, _parsed(data, f"{path}: {location}"), path, parent))


def _root(path: Path) -> str:
    """Returns the model's path below `Data/`, from the manifest."""
    where = f"[coreml] {path}: Manifest.json"
    text = read_all(open_inside(path, "Manifest.json", f"[coreml] {path}"), where)
    try:
        manifest = json.loads(text)
        items, root = manifest["itemInfoEntries"], manifest["rootModelIdentifier"]
        version, folder = str(manifest.get("fileFormatVersion", "")), items[root]["path"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Error(f"{where}: got no manifest of a package, need itemInfoEntries and rootModelIdentifier") from None
    if not version.startswith("1."):
        raise Error(f"{where}: got the version {version!r}, need 1.0.0")
    if not isinstance(folder, str):
        raise Error(f"{where}: got the path {folder!r}, need a text")
    return folder


def _parsed(data: bytes, where: str) -> Any:
    from google.protobuf.message import DecodeError  # imported late: not every model is Core ML's

    if data.startswith(LFS):
        raise Error(f"[coreml] {where}: got a Git LFS pointer, need the file itself: git lfs pull")
    if len(data) >= MOST_BYTES:
        raise Error(f"[coreml] {where}: got {len(data)} bytes, need fewer than {MOST_BYTES}")
    try:
        return messages()["Model"].FromString(data)
    except (DecodeError, RecursionError, UnicodeDecodeError):
        raise Error(f"[coreml] {where}: got {len(data)} bytes that are no Core ML model, need a whole one") from None


def _checked(package: Package) -> Package:
    spec = package.spec
    if spec.HasField("mlProgram"):
        if not spec.mlProgram.functions:
            raise Error(f"[coreml] {package.path}: got an ML program without functions, need one")
        return package
    if package.is_network:
        if not network_of(spec).layers:
            raise Error(f"[coreml] {package.path}: got a neural network without layers, need one")
        return package
    if package.is_suppression or package.is_transform:
        return package
    if (pipeline := pipeline_of(spec)) is not None:
        if not pipeline.models:
            raise Error(f"[coreml] {package.path}: got a pipeline without models, need one")
        unread = list(_unread(spec))
        if unread:
            raise UnsupportedError(
                f"[coreml] {package.path}: got a pipeline with {'; '.join(unread)}, need ML programs, neural networks, "
                "transforms of features, linear models and non-maximum suppression"
            )
        for name, part in package.stages.items():
            try:
                _checked(part)
            except Error as error:
                raise type(error)(f"{error}, in {name}") from None
        return package
    raise UnsupportedError(
        f"[coreml] {package.path}: got {kind_of(spec)} of version {spec.specificationVersion}, need an ML program"
        " or a neural network"
    )


def _unread(spec: Any, around: str = "") -> Iterator[str]:
    """Yields the name and kind of each unsupported model of a pipeline, also of the pipelines in it."""
    for name, model in stages_of(spec).items():
        if pipeline_of(model) is not None:
            yield from _unread(model, f" in {name}{around}")
        elif not _is_read(model):
            yield f"{name}{around}, {kind_of(model)}"


def _is_read(spec: Any) -> bool:
    return (
        spec.HasField("mlProgram")
        or spec.HasField("nonMaximumSuppression")
        or network_of(spec) is not None
        or bool(transform_of(spec))
    )


def pipeline_of(spec: Any) -> Any:
    """Returns the pipeline of a model, or None for another kind of model."""
    if spec.HasField("pipeline"):
        return spec.pipeline
    for name in ("pipelineClassifier", "pipelineRegressor"):
        if spec.HasField(name):
            return getattr(spec, name).pipeline
    return None


def stages_of(spec: Any) -> dict[str, Any]:
    """Returns the models of a pipeline in order, by the author's names. A model without a name is "model 2" and so
    on."""
    pipeline, stages = pipeline_of(spec), {}
    for i, model in enumerate(pipeline.models):
        name = pipeline.names[i] if i < len(pipeline.names) else ""
        stages[name if name and name not in stages else f"model {i + 1}"] = model
    return stages


def transform_of(spec: Any) -> str:
    """Returns the field's name of a feature transform or linear model; "" for another kind of model."""
    return next((kind for kind in TRANSFORMS if spec.HasField(kind)), "")


TRANSFORMS = {
    "scaler": "a scaler", "imputer": "an imputer", "normalizer": "a normalizer", "oneHotEncoder": "a one-hot encoder",
    "featureVectorizer": "a feature vectorizer", "arrayFeatureExtractor": "an array feature extractor",
    "glmClassifier": "a linear classifier", "glmRegressor": "a linear model", "identity": "an identity",
}  # fmt: skip
# The kinds of models by field number of Model.Type, looked up for fields that `schema.py` lacks.
KINDS = {
    301: "a support vector machine", 302: "a tree ensemble", 303: "a neural network",
    401: "a support vector machine", 402: "a tree ensemble", 403: "a neural network",
    404: "a nearest neighbour classifier", 500: "a neural network", 501: "an item similarity recommender",
    502: "an ML program", 555: "a custom model", 556: "a linked model", 560: "a classifier of bayesian probits",
    603: "a vectorizer of dictionaries", 606: "a mapping of categories",
    2000: "a gazetteer", 2001: "a word embedding", 2002: "a text classifier",
    2003: "a word tagger", 2004: "a vision feature print", 2005: "a sound analysis model",
    2006: "a sound feature print", 3000: "a serialized model",
}  # fmt: skip


def kind_of(spec: Any) -> str:
    """Returns the kind of a model, by the field that is set."""
    for name in ("mlProgram", *NETWORKS):
        if spec.HasField(name):
            return "an ML program" if name == "mlProgram" else "a neural network"
    if spec.HasField("nonMaximumSuppression"):
        return "non-maximum suppression"
    if kind := transform_of(spec):
        return TRANSFORMS[kind]
    if pipeline_of(spec) is not None:
        return "a pipeline"
    try:
        from google.protobuf.unknown_fields import UnknownFieldSet

        numbers = [f.field_number for f in UnknownFieldSet(spec)]
    except ImportError:  # protobuf before 4.25 lacks UnknownFieldSet
        numbers = []
    return next((KINDS[n] for n in numbers if n in KINDS), "a kind of model that is not known")


def _compiled(path: Path) -> Package:
    """Opens a folder that Core ML's compiler has written."""
    if not (path / "model.mil").exists():
        raise UnsupportedError(
            f"[coreml] {path}: got a compiled model without model.mil, which is a neural network of Core ML's format"
            " before 2021, need an ML program: give the .mlmodel that it was compiled from"
        )
    data = read_all(open_inside(path, "model.mil", f"[coreml] {path}"), f"[coreml] {path}: model.mil")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise Error(f"[coreml] {path}: model.mil: got bytes that are no UTF-8, need text") from None
    return Package(path, None, path, "", text, _usual(path))


def _usual(path: Path) -> str:
    """Returns the defaultFunctionName in metadata.json, a list of one object; "" if there is none."""
    where = f"[coreml] {path}: metadata.json"
    if not (path / "metadata.json").exists():
        return ""
    try:
        (about,) = json.loads(read_all(open_inside(path, "metadata.json", f"[coreml] {path}"), where))
        name = about.get("defaultFunctionName", "")
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise Error(f"{where}: got no description of a compiled model, need a list of one object") from None
    return name if isinstance(name, str) else ""
