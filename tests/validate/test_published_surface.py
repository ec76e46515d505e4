"""Tables 22.4 and 22.6 of the ANE guide, row by row: what the code does for each export and each key."""

import plistlib
from collections.abc import Callable
from typing import Any

import pytest

import hexane as hx
from hexane.emit.netplist import emit_netplist
from hexane.errors import Error
from hexane.graph import tensor_type
from hexane.netplist import read_plist, write_plist
from hexane.targets import Verdict
from hexane.targets.floors import layers
from hexane.targets.query import load_chip
from hexane.validate import Unit, validate, validate_module, validate_network, validate_weight_edit

H13 = load_chip("h13")
X = tensor_type("fp16", (1, 8, 4, 4))
TWO_OF_ONE_NAME = (Unit("a", "Neuron", (X,), {}), Unit("a", "Neuron", (X,), {}))


def umbrella() -> list[Verdict]:
    """Each layer's own validator is asked, and says the same alone."""
    found = validate_network((Unit("a", "Neuron", (X,), {}), Unit("b", "Dropout", (X,), {})), H13)
    assert found == {"b": validate("Dropout", (X,), {}, H13)}
    return found["b"]


# Table 22.4: the export, and a call that refuses as it does.
EXPORTS: dict[str, Callable[[], list[Verdict]]] = {
    "_ANECValidateNetworkCreate": umbrella,
    "_ANECValidate": lambda: validate("Dropout", (X,), {}, H13),
    "_ANECValidateMPSModule": lambda: validate_module((2, 0, 0), ["a"]),
    "_ANECValidateMPSModuleCreate": lambda: validate_module((1, 0, 10), [unit.name for unit in TWO_OF_ONE_NAME]),
    "_ANECValidateMutableProcedureInfo": lambda: validate_weight_edit({"w": X}, {"w": tensor_type("fp16", (1, 8))}),
}


@pytest.mark.parametrize("export", EXPORTS)
def test_an_export_of_table_22_4_refuses(export: str) -> None:
    verdicts = EXPORTS[export]()
    assert len(verdicts) == 1
    assert verdicts[0].verdict == "rejected"


def test_all_fifty_layer_validators_stand_beside_the_five(published: Callable[[str], list[dict[str, str]]]) -> None:
    rows = published("layer_descriptors")
    assert {
        row["ANEC<name>LayerDesc"] for row in rows if row["in_48_ValidateLayer_templates"] == "yes"
    } <= layers().keys()


# Table 22.6: the key, where it stands, and what the reader says without it; "" where it is read and may be absent.
KEYS = [
    ("Networks", (), "Networks"),
    ("ProcedureList", (), "ProcedureList"),
    ("Units", ("net",), "Units"),
    ("Weights", ("net",), ""),  # the weights are the bytes beside the list
    ("InputList", ("ProcedureList", 0), "InputList"),
    ("OutputList", ("ProcedureList", 0), "OutputList"),
    ("OperationList", ("ProcedureList", 0), ""),  # one network: there is one operation
    ("Bottom", ("net", "unit"), "Bottom"),
    ("Type", ("net", "unit"), "Type"),
    ("Params", ("net", "unit"), "got no Type, which Neuron needs"),
    ("BatchSize", ("ProcedureList", 0, "InputList", 0), "BatchSize"),
    ("InputChannels", ("ProcedureList", 0, "InputList", 0), "InputChannels"),
    ("InputDepth", ("ProcedureList", 0, "InputList", 0), "InputDepth"),
    ("InputHeight", ("ProcedureList", 0, "InputList", 0), "InputHeight"),
    ("InputWidth", ("ProcedureList", 0, "InputList", 0), "InputWidth"),
    ("InputInterleave", ("ProcedureList", 0, "InputList", 0), ""),  # written as 1
]


@pytest.mark.parametrize(("key", "path", "words"), KEYS, ids=[row[0] for row in KEYS])
def test_a_key_of_table_22_6_is_written_and_read(key: str, path: tuple[Any, ...], words: str) -> None:
    net = emit_netplist(hx.graph({"y": hx.tanh(hx.input("x", (1, 8, 4, 6), "fp16")) * 1.0001}), H13)
    top = plistlib.loads(write_plist(net))
    table = top
    for step in path:
        names = {"net": top["Networks"][0], "unit": net.units[0].name}
        table = table[names.get(step, step)]
    assert key in table
    del table[key]
    if words:
        with pytest.raises(Error, match=words):
            read_plist(plistlib.dumps(top), net.weights)
    else:
        assert read_plist(plistlib.dumps(top), net.weights).units[0].name == net.units[0].name
