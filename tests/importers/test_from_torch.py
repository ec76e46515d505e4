"""PyTorch models through torch's ONNX export. Skipped where torch, which no other test needs, is not installed."""

import sys
from typing import Any

import numpy as np
import pytest

import hexane as hx
from compare import assert_close

torch: Any = pytest.importorskip("torch", reason="torch is not installed: pip install torch onnxscript")
pytest.importorskip("onnxscript", reason="onnxscript, which torch's ONNX export needs, is not installed")
nn = torch.nn

# torch and onnxscript deprecate parts of each other.
pytestmark = pytest.mark.filterwarnings("default")


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 10)
        self.norm.running_mean.uniform_(-1, 1)
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, image):
        h = torch.max_pool2d(torch.relu(self.norm(self.conv(image))), 2)
        return self.head(h.mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(12, 16, num_layers=2, batch_first=True, bidirectional=True)

    def forward(self, tokens):
        every, (hidden, cell) = self.lstm(tokens)
        return every, hidden, cell  # flat, as the outputs are


class Language(nn.Module):
    """A causal transformer over token ids."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
        self.head = nn.Linear(32, 50)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.head(self.layer(self.embed(ids), src_mask=mask, is_causal=True))


def mlp():
    return nn.Sequential(nn.Linear(20, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 5))


MODELS = {
    "cnn": (ConvNet, (2, 3, 16, 16)),
    "encoder": (lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), (2, 7, 32)),
    "encoder_gelu": (lambda: nn.TransformerEncoderLayer(32, 4, 64, activation="gelu", norm_first=True), (7, 2, 32)),
    "lstm": (Recurrent, (2, 5, 12)),
    "gru": (lambda: nn.GRU(12, 16), (5, 2, 12)),
    "mlp": (mlp, (3, 20)),
    "causal": (Language, None),
    "group_norm": (lambda: nn.Sequential(nn.Conv2d(4, 8, 3, stride=2), nn.GroupNorm(2, 8), nn.SiLU()), (1, 4, 9, 9)),
    "decoder": (
        lambda: nn.Sequential(nn.ConvTranspose2d(4, 8, 2, stride=2), nn.Upsample(scale_factor=2)),
        (1, 4, 5, 5),
    ),
}


def example(shape: tuple[int, ...] | None) -> Any:
    return torch.arange(12).reshape(2, 6) % 50 if shape is None else torch.randn(shape)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def compare(net: Any, want: Any, *inputs: Any) -> None:
    got = net(*[x.numpy() for x in inputs])
    arrays = list(got.values()) if isinstance(got, dict) else [got]
    wanted = list(want) if isinstance(want, tuple) else [want]
    assert len(arrays) == len(wanted)
    for array, tensor in zip(arrays, wanted, strict=True):
        assert_close(array, tensor.numpy())


@pytest.mark.parametrize("name", MODELS)
def test_a_module_computes_what_torch_computes(name):
    make, shape = MODELS[name]
    model, x = make().eval(), example(shape)
    net = hx.compile(hx.from_torch(model, x))
    with torch.no_grad():
        want = model(x)
    compare(net, want, x)


def test_an_exported_program_computes_what_torch_computes():
    model, x = ConvNet().eval(), torch.randn(1, 3, 8, 8)
    net = hx.compile(hx.from_torch(torch.export.export(model, (x,))))
    with torch.no_grad():
        compare(net, model(x), x)


def test_a_module_in_training_is_imported_in_evaluation_mode_and_stays_as_it_was():
    model, x = nn.Sequential(ConvNet(), nn.Dropout(0.5)), torch.randn(1, 3, 8, 8)
    model[0].norm.eval()
    net = hx.compile(hx.from_torch(model, x))
    assert [m.training for m in (model, model[0], model[0].norm, model[1])] == [True, True, False, True]
    with torch.no_grad():
        compare(net, model.eval()(x), x)


def test_inputs_are_named_after_the_parameters_of_forward():
    class Scaled(nn.Module):
        def forward(self, image, scale):
            return torch.relu(image) * scale

    graph = hx.from_torch(Scaled(), (torch.ones(2, 3), torch.ones(3)))
    net = hx.compile(graph)
    assert [(p.name, p.shape) for p in net.inputs] == [("image", (2, 3)), ("scale", (3,))]
    assert [p.name for p in net.outputs] == ["mul"]


def test_an_argument_may_be_a_dict():
    class Sum(nn.Module):
        def forward(self, parts):
            return parts["a"] + parts["b"]

    parts = {"a": torch.ones(3), "b": torch.arange(3.0)}
    net = hx.compile(hx.from_torch(Sum(), (parts,)))
    assert [p.name for p in net.inputs] == ["parts_a", "parts_b"]
    compare(net, parts["a"] + parts["b"], *parts.values())


def test_dynamic_shapes_are_refused():
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(mlp().eval(), (torch.randn(3, 20),), dynamic_shapes=({0: batch},))
    with pytest.raises(hx.Error, match=r"\[from_torch\] got dynamic shapes of 'input', need static ones"):
        hx.from_torch(program)


def test_a_model_that_torch_cannot_export_is_an_error():
    class Branching(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(
        hx.Error, match=r"\[from_torch\] Branching: torch.onnx could not export it: \w+: Could not guard"
    ):
        hx.from_torch(Branching(), torch.ones(3))


class Counter(nn.Module):
    """Buffers that forward changes: whole, in part, a scalar, and one that no output depends on."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.arange(3.0))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(2, 3), persistent=False)
        self.register_buffer("kept", torch.ones(3))
        self.lin = nn.Linear(3, 3)

    def forward(self, x):
        before = self.total * self.kept
        self.total.add_(x)
        self.calls += 1
        self.seen[1] = x * 2
        return self.lin(before) + self.total, self.calls


@pytest.mark.parametrize("exported", [False, True])
def test_buffers_that_forward_changes_are_states(exported):
    model = Counter().eval()
    xs = [torch.randn(3) for _ in range(3)]
    source = torch.export.export(model, (xs[0],)) if exported else model
    net = hx.compile(hx.from_torch(source) if exported else hx.from_torch(model, xs[0]), threads=1)
    assert [p.name for p in net.inputs] == ["x"]
    assert len(net.outputs) == 2
    for _ in range(2):
        model = Counter().eval()
        model.lin.load_state_dict(_linear(source))
        with torch.no_grad():
            for x in xs:
                compare(net, model(x), x)
                for name in ("total", "calls", "seen"):
                    assert_close(net.read_state(name).reshape(getattr(model, name).shape), getattr(model, name).numpy())
        net.reset_state()
    with pytest.raises(hx.Error, match="'kept'"):
        net.read_state("kept")


def _linear(source):
    weights = source.state_dict if isinstance(source.state_dict, dict) else source.state_dict()
    return {name.removeprefix("lin."): tensor for name, tensor in weights.items() if name.startswith("lin.")}


def test_a_cache_that_forward_writes_is_a_state():
    class Cache(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("keys", torch.zeros(1, 8, 4))

        def forward(self, key, position):
            self.keys.index_copy_(1, position, key)
            return torch.softmax(key @ self.keys.transpose(1, 2), -1)

    model = Cache().eval()
    key, position = torch.randn(1, 2, 4), torch.tensor([0, 1])
    net = hx.compile(hx.from_torch(model, (key, position)))
    model.keys.zero_()
    with torch.no_grad():
        for step in range(3):
            key, position = torch.randn(1, 2, 4), torch.tensor([2 * step, 2 * step + 1])
            compare(net, model(key, position), key, position)


def test_a_batch_norm_in_training_is_refused():
    program = torch.export.export(nn.Sequential(nn.BatchNorm1d(3)).train(), (torch.randn(5, 3),))
    with pytest.raises(hx.Error, match=r"batch norm in training, which torch.onnx exports as inference"):
        hx.from_torch(program)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("model.pt",), "got str, need a torch.nn.Module"),
        ((nn.Linear(2, 2),), "Linear: got no example_inputs"),
    ],
)
def test_what_is_no_model_is_an_error(arguments, message):
    with pytest.raises(hx.Error, match=message):
        hx.from_torch(*arguments)


@pytest.mark.parametrize("name", ["torch", "onnxscript"])
def test_a_missing_package_is_named(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(hx.Error, match=rf"\[from_torch\] got no {name}, need the extra 'torch'"):
        hx.from_torch(nn.Linear(2, 2), torch.ones(2))


def test_the_weights_are_those_of_the_module():
    model = mlp().eval()
    graph = hx.from_torch(model, torch.randn(3, 20))
    weight = model[0].weight.detach().numpy()
    assert any(np.array_equal(c, weight) or np.array_equal(c, weight.T) for c in graph.constants().values())


class Counting(nn.Module):
    """A buffer that forward changes, so that the module is exported inside another one."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        return self.fc(x) * self.calls


@pytest.mark.parametrize(
    "make", [mlp, ConvNet, lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), Counting]
)
def test_params_are_the_parameters_of_the_module(make):
    """None is folded, fused into another, renamed, or one with another that has the same values at first."""
    model = make().eval()
    x = {"ConvNet": torch.randn(2, 3, 8, 8), "Counting": torch.randn(4, 3)}.get(
        type(model).__name__, torch.randn(2, 5, 8) if make is not mlp else torch.randn(3, 20)
    )
    want = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    made = hx.train.with_params(hx.from_torch(model, x, params="*"))
    assert set(made.params) == set(want)
    assert all(np.array_equal(made.params[name].value.node.data, array) for name, array in want.items())
    net = hx.compile(made.graph, threads=1)
    new = {name: array + np.float32(0.1) for name, array in want.items()}
    net.update(**new)
    model.load_state_dict({name: torch.tensor(array) for name, array in new.items()}, strict=False)
    if isinstance(model, Counting):
        model.calls.zero_()
    assert_close(net(x.numpy()), model(x).detach().numpy())


def test_buffers_are_no_params_but_for_the_statistics_of_batch_norms():
    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.register_buffer("angles", torch.rand(4))

        def forward(self, x):
            return self.norm(x) * self.angles.cos()

    made = hx.train.with_params(hx.from_torch(Turned().eval(), torch.randn(3, 4), params="*"))
    assert set(made.params) == {"norm.weight", "norm.bias"}
    assert set(made.statistics) == {"norm.running_mean", "norm.running_var"}
    with pytest.raises(hx.Error, match="got the pattern 'angles', which no name fits"):
        hx.from_torch(Turned().eval(), torch.randn(3, 4), params="angles")


def test_a_pattern_that_no_parameter_fits_is_refused():
    with pytest.raises(hx.Error, match=r"got the pattern '5.\*', which no name fits, need such as"):
        hx.from_torch(mlp().eval(), torch.randn(3, 20), params="0.*|5.*")


class Tied(nn.Module):
    """A head with the weights of the embedding, which torch exports under the head's name."""

    def __init__(self, counts=False):
        super().__init__()
        self.embed, self.fc = nn.Embedding(20, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.embed.weight
        self.counts = counts
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, tokens):
        if self.counts:
            self.seen += 1
        return self.head(torch.relu(self.fc(self.embed(tokens))))


@pytest.mark.parametrize("form", ["module", "exported", "buffers"])
def test_tied_weights_have_the_names_of_torch(form):
    model, tokens = Tied(form == "buffers").eval(), torch.randint(0, 20, (2, 5))
    source = (torch.export.export(model, (tokens,)),) if form == "exported" else (model, tokens)
    made = hx.train.with_params(hx.from_torch(*source, params="*"))
    assert set(made.params) == {name for name, _ in model.named_parameters()}
    for pattern in ("embed.*", "head.*", "head.*|embed.*"):
        assert list(hx.train.with_params(hx.from_torch(*source, params=pattern)).params) == ["embed.weight"]


@pytest.mark.parametrize("counts", [False, True])
def test_a_module_loads_what_was_trained_with_tied_weights(counts):
    model, tokens = Tied(counts).eval(), torch.randint(0, 20, (2, 5))
    made = hx.train.with_params(hx.from_torch(model, tokens, params="*"))
    loss = hx.cross_entropy(next(iter(made.outputs.values())), hx.input("labels", (2, 5), "int32"))
    net = hx.compile(hx.train.step(loss, list(made.params.values()), hx.train.sgd(0.5)), threads=1)
    labels = torch.randint(0, 20, (2, 5))
    model.seen.zero_()
    (name,) = made.inputs
    net({name: tokens.numpy(), "labels": labels.numpy().astype(np.int32)})
    nn.functional.cross_entropy(model(tokens).reshape(10, 20), labels.reshape(10)).backward()
    want = {n: (p - 0.5 * p.grad).detach().numpy() for n, p in model.named_parameters()}
    found = hx.train.state_dict(model, net)
    assert list(found) == list(model.state_dict())
    other = Tied(counts)
    other.load_state_dict(found)
    assert other.head.weight is other.embed.weight
    for n, p in other.named_parameters():
        assert_close(p.detach().numpy(), want[n])
    assert other.seen.item() == counts


def test_a_buffer_named_as_the_count_of_calls_stays_the_modules():
    linear = nn.Linear(3, 2)
    linear.register_buffer("calls", torch.full((1,), 7.0))
    made = hx.train.with_params(hx.from_torch(linear.eval(), torch.randn(4, 3), params="*"))
    loss = hx.reduce_mean(next(iter(made.outputs.values())))
    net = hx.compile(hx.train.step(loss, list(made.params.values()), hx.train.sgd(0.5)), threads=1)
    assert hx.train.state_dict(linear, net)["calls"].item() == 7


def test_a_state_dict_needs_states_of_the_module():
    net = hx.compile(hx.from_torch(mlp().eval(), torch.randn(3, 20)), threads=1)
    with pytest.raises(hx.Error, match="got no state of the module's names"):
        hx.train.state_dict(mlp(), net)


@pytest.mark.parametrize(
    "module",
    [nn.ReLU6(), nn.Hardtanh(), nn.Hardtanh(-0.5, 1.5), nn.Hardtanh(-2.0, 6.0), nn.Hardswish(), nn.Hardsigmoid()],
)
def test_gradients_at_the_ends_of_activations_are_those_of_torch(module):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.own, self.scale = module, nn.Parameter(torch.ones(9))

        def forward(self, x):
            return self.own(torch.clamp(x, -7, 7) * self.scale)

    x = torch.tensor([-7, -3, -2, -1, -0.5, 0, 1.5, 3, 6], requires_grad=True)
    model = Net().eval()
    model(x).sum().backward()
    made = hx.from_torch(model, x.detach(), params="*")
    (y,), (read,) = (hx.Tensor(p.value) for p in made.outputs), (hx.Tensor(v) for v in made.inputs)
    (gradient,) = hx.grad(hx.reduce_sum(y), [read])
    net = hx.compile(hx.graph({"y": y, "gradient": gradient}), threads=1)
    found = net(x.detach().numpy())
    assert_close(found["y"], model(x).detach().numpy())
    assert_close(found["gradient"], x.grad.numpy())
