"""Feature transforms and linear models, alone and in pipelines. Messages are those of Apple's classes, written as its
converters of scikit-learn write them; expected values are scikit-learn's."""

import warnings
from collections.abc import Callable
from math import erf, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.errors import Error, UnsupportedError
from hexane.importers.coreml.description import declared_text
from hexane.importers.coreml.model import open_model

RNG = np.random.default_rng(6)
DOUBLE, FLOAT, INTEGER = 65600, 65568, 131104
X = RNG.normal(size=(60, 4))
Fill = Callable[[Any], object]


@pytest.fixture(scope="module")
def apple() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("coremltools", reason="coremltools is not installed")


@pytest.fixture(scope="module")
def sklearn() -> Any:
    modules = ("impute", "linear_model", "multiclass", "preprocessing")
    return {name: pytest.importorskip(f"sklearn.{name}", reason="scikit-learn is not installed") for name in modules}


def array(port: Any, name: str, size: int, dtype: int = DOUBLE) -> None:
    port.name = name
    port.type.multiArrayType.shape.append(size)
    port.type.multiArrayType.dataType = dtype


def transform(
    apple: Any, fill: Fill, given: tuple[tuple[str, int], ...] = (("x", 4),), made: tuple[str, int] = ("y", 4)
) -> Any:
    spec = apple.proto.Model_pb2.Model(specificationVersion=1)
    for name, size in given:
        if size:
            array(spec.description.input.add(), name, size)
        else:
            spec.description.input.add(name=name).type.doubleType.SetInParent()
    array(spec.description.output.add(), *made)
    fill(spec)
    return spec


def classifier(apple: Any, rows: Any, offsets: Any, classes: Any, given: str = "x") -> Any:
    spec = apple.proto.Model_pb2.Model(specificationVersion=1)
    array(spec.description.input.add(), given, len(rows[0]))
    spec.description.output.add(name="label").type.int64Type.SetInParent()
    spec.description.output.add(name="chances").type.dictionaryType.int64KeyType.SetInParent()
    spec.description.predictedFeatureName, spec.description.predictedProbabilitiesName = "label", "chances"
    model = spec.glmClassifier
    model.classEncoding, model.postEvaluationTransform = model.OneVsRest, model.Logit
    for row in rows:
        model.weights.add().value.extend(row)
    model.offset.extend(offsets)
    model.int64ClassLabels.vector.extend(classes)
    return spec


def test_an_output_is_shown_as_the_file_declares_it(apple: Any) -> None:
    spec = classifier(apple, np.eye(2, 4), [0.0, 1.0], [3, 5])
    array(spec.description.output.add(), "scores", 4, FLOAT)
    spec.description.output.add(name="typed").type.multiArrayType.dataType = INTEGER
    spec.description.output.add(name="shaped").type.multiArrayType.shape.extend([2, 3])
    spec.description.output.add(name="empty").type.multiArrayType.SetInParent()
    spec.description.output.add(name="bare")
    picture = spec.description.output.add(name="picture").type.imageType
    picture.width, picture.height, picture.colorSpace = 8, 6, 20
    assert {one.name: declared_text(one) for one in spec.description.output} == {
        "label": "int64",
        "chances": "dictionary from int64 to fp64",
        "scores": "fp32[4]",
        "typed": "int32 (the file gives no shape)",
        "shaped": "[2, 3] (the file gives no dtype)",
        "empty": "",
        "bare": "",
        "picture": "image, rgb, uint8[6, 8, 3]",
    }


def pipeline(apple: Any, *models: Any) -> Any:
    """Of the first model's inputs and the last one's outputs."""
    spec = apple.proto.Model_pb2.Model(specificationVersion=max(m.specificationVersion for m in models))
    spec.description.input.extend(models[0].description.input)
    spec.description.output.extend(models[-1].description.output)
    for model in models:
        spec.pipeline.models.add().CopyFrom(model)
    return spec


def saved(folder: Path, spec: Any) -> Path:
    (folder / "net.mlmodel").write_bytes(spec.SerializeToString())
    return folder / "net.mlmodel"


def near(net: Any, rows: Any, want: Any) -> None:
    for row, expected in zip(rows, want, strict=True):
        np.testing.assert_allclose(np.asarray(net(row)).reshape(-1), np.ravel(expected), rtol=1e-12, atol=1e-12)


def test_a_scaler_adds_and_then_multiplies(apple: Any, sklearn: Any, tmp_path: Path) -> None:
    model = sklearn["preprocessing"].StandardScaler().fit(X)

    def fill(spec: Any) -> None:
        spec.scaler.shiftValue.extend(-model.mean_)
        spec.scaler.scaleValue.extend(1 / model.scale_)

    near(hx.compile(saved(tmp_path, transform(apple, fill))), X, model.transform(X))
    one = transform(apple, lambda spec: spec.scaler.scaleValue.append(0.5))
    near(hx.compile(saved(tmp_path, one)), X, X / 2)


@pytest.mark.parametrize("missing", [np.nan, -1.0])
def test_an_imputer_replaces_what_is_missing(apple: Any, sklearn: Any, tmp_path: Path, missing: float) -> None:
    x = np.where(RNG.uniform(size=X.shape) < 0.3, missing, X)
    model = sklearn["impute"].SimpleImputer(missing_values=missing).fit(x)

    def fill(spec: Any) -> None:
        spec.imputer.imputedDoubleArray.vector.extend(model.statistics_)
        spec.imputer.replaceDoubleValue = missing

    near(hx.compile(saved(tmp_path, transform(apple, fill))), x, model.transform(x))


@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
def test_a_normalizer_divides_by_a_norm(apple: Any, sklearn: Any, tmp_path: Path, norm: str) -> None:
    """The largest number of Apple's description is scikit-learn's where none is negative."""
    x = np.concatenate([np.abs(X) if norm == "max" else X, np.zeros((1, 4))])

    def fill(spec: Any) -> None:
        spec.normalizer.normType = {"l1": 1, "l2": 2, "max": 0}[norm]
        spec.normalizer.SetInParent()

    want = sklearn["preprocessing"].Normalizer(norm=norm).transform(x)
    near(hx.compile(saved(tmp_path, transform(apple, fill))), x, want)


@pytest.mark.parametrize("unknown", ["ignore", "error"])
def test_a_category_becomes_a_place(apple: Any, tmp_path: Path, unknown: str) -> None:
    categories = [7, -2, 1000, 0]

    def fill(spec: Any) -> None:
        spec.oneHotEncoder.int64Categories.vector.extend(categories)
        spec.oneHotEncoder.handleUnknown = int(unknown == "ignore")

    net = hx.compile(saved(tmp_path, transform(apple, fill, (("x", 0),))))
    x = np.array([[7.0], [1000.0], [0.0], [-2.0]])
    near(net, x, np.eye(4)[[0, 2, 3, 1]])
    if unknown == "ignore":
        near(net, [np.array([5.0])], [np.zeros(4)])
    else:
        with pytest.raises(Error, match="4"):
            net(np.array([5.0]))


def test_features_are_joined_and_picked(apple: Any, tmp_path: Path) -> None:
    def join(spec: Any) -> None:
        for name, size in (("b", 3), ("a", 1), ("c", 1)):
            spec.featureVectorizer.inputList.add(inputColumn=name, inputDimensions=size)

    def pick(spec: Any) -> None:
        spec.arrayFeatureExtractor.extractIndex.extend([4, 0, 0])

    joined = transform(apple, join, (("a", 0), ("b", 3), ("c", 0)), ("all", 5))
    given = {"a": np.array([1.5]), "b": np.array([2.0, 3.0, 4.0]), "c": np.array([5.0])}
    np.testing.assert_array_equal(hx.compile(saved(tmp_path, joined))(**given), [2, 3, 4, 1.5, 5])
    picked = transform(apple, pick, (("all", 5),), ("y", 3))
    np.testing.assert_array_equal(hx.compile(saved(tmp_path, pipeline(apple, joined, picked)))(**given), [5, 2, 2])


@pytest.mark.parametrize("after", ["NoTransform", "Logit", "Probit"])
def test_a_linear_model_gives_a_number(apple: Any, sklearn: Any, tmp_path: Path, after: str) -> None:
    model = sklearn["linear_model"].LinearRegression().fit(X, X @ [1, -2, 0.5, 3] + 4)

    def fill(spec: Any) -> None:
        spec.glmRegressor.weights.add().value.extend(model.coef_)
        spec.glmRegressor.offset.append(model.intercept_)
        spec.glmRegressor.postEvaluationTransform = getattr(spec.glmRegressor, after)

    y = model.predict(X)
    want = {"NoTransform": y, "Logit": 1 / (1 + np.exp(-y)), "Probit": [(1 + erf(v / sqrt(2))) / 2 for v in y]}[after]
    near(hx.compile(saved(tmp_path, transform(apple, fill, made=("y", 1)))), X, want)


@pytest.mark.parametrize("classes", [[3, 8], [3, 8, 11], [5, 1, 2, 0]])
def test_a_classifier_of_one_against_the_rest(apple: Any, sklearn: Any, tmp_path: Path, classes: list[int]) -> None:
    """Behind a scaler, in a pipeline in a pipeline."""
    scale = sklearn["preprocessing"].StandardScaler().fit(X)
    x = scale.transform(X)
    truth = np.array(sorted(classes))[np.argmax(x[:, : len(classes)] if len(classes) > 2 else x[:, :2], axis=1)]
    fitted = sklearn["multiclass"].OneVsRestClassifier(sklearn["linear_model"].LogisticRegression()).fit(x, truth)
    rows = [m.coef_[0] for m in fitted.estimators_]
    spec = classifier(apple, rows, [m.intercept_[0] for m in fitted.estimators_], fitted.classes_, "scaled")

    def fill(made: Any) -> None:
        made.scaler.shiftValue.extend(-scale.mean_)
        made.scaler.scaleValue.extend(1 / scale.scale_)

    inner = pipeline(apple, transform(apple, fill, made=("scaled", 4)))
    path = saved(tmp_path, pipeline(apple, inner, spec))
    net = hx.compile(path)
    for row, label, chances in zip(X, fitted.predict(x), fitted.predict_proba(x), strict=True):
        got = net(row)
        assert got["label"] == label
        np.testing.assert_allclose(got["chances"], chances, rtol=1e-9)
    assert open_model(path).labels("main") == tuple(map(str, fitted.classes_))


def test_a_transform_in_front_of_a_network(apple: Any, tmp_path: Path) -> None:
    """Its doubles become the network's floats; a model may give its input's name a new value."""
    from coremltools.models import datatypes
    from coremltools.models.neural_network import NeuralNetworkBuilder

    weight = RNG.normal(size=(3, 4)).astype(np.float32)
    builder = NeuralNetworkBuilder([("x", datatypes.Array(4))], [("y", None)], disable_rank5_shape_mapping=True)
    builder.add_inner_product("dense", weight, None, 4, 3, False, "x", "y")
    scaled = transform(apple, lambda spec: spec.scaler.scaleValue.append(3.0), made=("x", 4))
    same = transform(apple, lambda spec: spec.identity.SetInParent(), made=("x", 4))
    net = hx.compile(saved(tmp_path, pipeline(apple, scaled, same, builder.spec)))
    np.testing.assert_allclose(net(X[0]), weight @ (3 * X[0]), rtol=1e-5)


def test_models_that_are_not_read_are_named_in_one_error(apple: Any, tmp_path: Path) -> None:
    trees = apple.proto.Model_pb2.Model(specificationVersion=1)
    trees.treeEnsembleRegressor.SetInParent()
    words = apple.proto.Model_pb2.Model(specificationVersion=1)
    words.dictVectorizer.SetInParent()
    same = transform(apple, lambda spec: spec.identity.SetInParent())
    spec = pipeline(apple, same, trees, pipeline(apple, same, words))
    with pytest.raises(UnsupportedError, match="model 2, a tree ensemble; model 2 in model 3, a vectorizer of dict"):
        hx.compile(saved(tmp_path, spec))


def test_a_chain_of_all_of_them(apple: Any, tmp_path: Path) -> None:
    """By NumPy, from Apple's descriptions."""
    mean, weight = np.array([1.0, 2.0, 3.0, 4.0, 5.0]), RNG.normal(size=(3, 2))

    def join(spec: Any) -> None:
        for name, size in (("a", 4), ("b", 1)):
            spec.featureVectorizer.inputList.add(inputColumn=name, inputDimensions=size)

    def impute(spec: Any) -> None:
        spec.imputer.imputedDoubleArray.vector.extend(mean)
        spec.imputer.replaceDoubleValue = np.nan

    def scale(spec: Any) -> None:
        spec.scaler.shiftValue.append(-2.0)
        spec.scaler.scaleValue.extend([1.0, 0.5, 0.25, 2.0, 4.0])

    def normalize(spec: Any) -> None:
        spec.normalizer.normType = 2

    five = (("v", 5),)
    spec = pipeline(
        apple, transform(apple, join, (("a", 4), ("b", 0)), ("v", 5)), transform(apple, impute, five, ("v", 5)),
        transform(apple, scale, five, ("w", 5)), transform(apple, normalize, (("w", 5),), ("n", 5)),
        transform(apple, lambda s: s.arrayFeatureExtractor.extractIndex.extend([4, 1]), (("n", 5),), ("p", 2)),
        classifier(apple, weight, [0.5, 0.0, -0.5], [10, 20, 30], "p"),
    )  # fmt: skip
    net = hx.compile(saved(tmp_path, spec))
    for row in X[:10]:
        a, b = np.where(row > 1, np.nan, row), np.array([np.nan if row[0] < 0 else 7.0])
        v = np.concatenate([a, b])
        w = (np.where(np.isnan(v), mean, v) - 2) * [1, 0.5, 0.25, 2, 4]
        p = (w / np.sqrt((w**2).sum()))[[4, 1]]
        chances = 1 / (1 + np.exp(-(weight @ p + [0.5, 0, -0.5])))
        got = net(a=a, b=b)
        np.testing.assert_allclose(got["chances"], chances / chances.sum(), rtol=1e-9)
        assert got["label"] == 10 * (chances.argmax() + 1)


def test_parameters_that_do_not_fit_are_errors(apple: Any, tmp_path: Path) -> None:
    def short(spec: Any) -> None:
        spec.scaler.shiftValue.extend([1.0, 2.0])

    def texts(spec: Any) -> None:
        spec.oneHotEncoder.stringCategories.vector.append("a")

    def far(spec: Any) -> None:
        spec.arrayFeatureExtractor.extractIndex.append(4)

    def nothing(spec: Any) -> None:
        spec.imputer.imputedDoubleValue = 1.0

    def reference(spec: Any) -> None:
        spec.glmRegressor.weights.add().value.extend([1.0, 2.0])

    for fill, match in (
        (short, "shiftValue: got 2 numbers, need 1 or 4"),
        (texts, "got categories that are texts"),
        (far, r"extractIndex: got \[4\], need indices below 4"),
        (nothing, "need numbers and the number that stands for none"),
        (reference, r"got \[2\] weights and 0 offsets for .*, need 4 for each result"),
    ):
        with pytest.raises(Error, match=match):
            hx.compile(saved(tmp_path, transform(apple, fill)))
    spec = classifier(apple, [[1.0] * 4], [0.0], [1, 2])
    spec.glmClassifier.classEncoding = 0
    with pytest.raises(Error, match="a class of reference, need one against the rest"):
        hx.compile(saved(tmp_path, spec))


@pytest.mark.parametrize(("kind", "named"), [("dictionaryType", "a dictionary"), ("stringType", "a text")])
def test_an_input_that_is_no_number_is_named_by_its_kind(apple: Any, tmp_path: Path, kind: str, named: str) -> None:
    """scikit-learn's one-hot encoder is a pipeline whose models pass dictionaries."""
    spec = apple.proto.Model_pb2.Model(specificationVersion=1)
    given = spec.description.input.add(name="x")
    getattr(given.type, kind).SetInParent()
    array(spec.description.output.add(), "y", 4)
    spec.featureVectorizer.inputList.add(inputColumn="x", inputDimensions=4)
    (tmp_path / "m.mlmodel").write_bytes(spec.SerializeToString())
    with pytest.raises(Error, match=rf"got the input 'x', {named}, need an array, a number or an image"):
        hx.compile(tmp_path / "m.mlmodel")
