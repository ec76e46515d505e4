"""The options of `compile`: one dataclass, whose fields are the keywords."""

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import hexane as hx
from hexane import memory, options

OF_THE_MODEL = {"model", "options", "input_shapes", "input_values", "updates"}


def graph() -> hx.Graph:
    return hx.graph({"y": hx.relu(hx.input("x", (1, 3, 8, 8)))})


def test_keywords_of_compile_are_the_fields_of_options() -> None:
    keywords = set(inspect.signature(hx.compile).parameters) - OF_THE_MODEL
    assert keywords == {f.name for f in fields(hx.Options)}


@pytest.mark.parametrize(
    ("module", "kind"), [(options, hx.Options), (options, hx.Device), (options, hx.AutoDtype), (memory, hx.Memory)], ids=["Options", "Device", "AutoDtype", "Memory"]
)  # fmt: skip
def test_every_field_has_its_own_description(module: Any, kind: Any) -> None:
    source = Path(module.__file__).read_text().partition(f"class {kind.__name__}:")[2]
    for field in fields(kind):
        assert re.search(rf'^    {field.name}: .*\n    """\S', source, re.MULTILINE), f"{kind.__name__}.{field.name}"


def test_a_keyword_replaces_the_field_of_the_options() -> None:
    chosen = hx.Options(target="h13", device="cpu", numerics="ieee", io="fp16")
    net = hx.compile(graph(), chosen, target="h14", numerics="engine")
    assert isinstance(net, hx.Model)
    assert net.target == "h14"
    assert [str(port.dtype) for port in net.inputs] == ["fp16"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"dtype": "int4"}, "dtype: got 'int4'"),
        ({"fallback": "cpu"}, "fallback: got 'cpu'"),
        ({"io": "fp32"}, "io: got 'fp32'"),
        ({"device": "gpu"}, "device: got 'gpu'"),
        ({"device": 3}, "device: got 3"),
        ({"threads": 0}, "threads: got 0"),
        ({"threads": True}, "threads: got True"),
        ({"memory": "128K"}, "memory: got '128K', need an hx.Memory"),
        ({"numerics": "exact"}, "numerics: got 'exact'"),
    ],
)
def test_a_value_of_no_field_is_refused_where_it_is_written(given: dict[str, Any], words: str) -> None:
    for refused in (lambda: hx.Options(**given), lambda: hx.compile(graph(), **given)):
        with pytest.raises(hx.Error, match=re.escape(words)):
            refused()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"target": "h13", "memory": hx.Memory("64K")}, "memory: got sram for h13"),
        ({"target": "h13", "memory": hx.Memory(hold_ports=True)}, "memory: got hold_ports for h13"),
        ({"target": "h13", "trim_output_transpose": True}, "trim_output_transpose: got it for h13"),
        ({"target": "h13", "dtype": "fp32"}, "dtype: got 'fp32' for h13"),
        ({"target": "h13", "dtype": "auto"}, "dtype: got 'auto' for h13"),
        ({"target": "h13", "dtype": hx.AutoDtype(1e-3)}, "dtype: got 'auto' for h13"),
        ({"target": "h13", "numerics": "q31"}, "numerics: got 'q31' for h13"),
        ({"target": "host", "numerics": "engine"}, "numerics: got 'engine' for host"),
        ({"target": "host", "schedule": "apple"}, "schedule: got 'apple'"),
        ({"target": "host", "device": hx.Device("ane", qos=3)}, "device: got 'ane' for host"),
    ],
)
def test_options_that_do_not_go_with_the_target_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(hx.Error, match=re.escape(words)):
        hx.compile(graph(), hx.Options(**given))
