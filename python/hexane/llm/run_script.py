"""The script that makes text with exported packages on a Mac."""

_SCRIPT = '''"""Makes text with the packages of this folder on a Mac: python run.py "Once upon a time".

Needs coremltools and tokenizers.
"""

import json
import sys
from pathlib import Path

import coremltools as ct
import numpy as np
from tokenizers import Tokenizer

HERE = Path(__file__).parent
about = json.loads((HERE / "manifest.json").read_text(encoding="utf-8"))
tokenizer = Tokenizer.from_file(str(HERE / "tokenizer.json"))


# run


# open
prompt = sys.argv[1] if len(sys.argv) > 1 else "Once upon a time"
ids = about["begins"] + tokenizer.encode(prompt, add_special_tokens=False).ids
if not 0 < len(ids) <= about["context"]:
    sys.exit(f"the prompt has {len(ids)} tokens; this package takes 1 to {about['context']}")
place, logits = 0, None
shown = tokenizer.decode(ids)

while place < len(ids):
    fits = [count for count in prefill if place + count <= about["context"]]
    if fits:  # the shortest call for all tokens, or the longest; later tokens overwrite the rows after the last token
        count = min((one for one in fits if one >= len(ids) - place), default=max(fits))
        part = ids[place : place + count]
        tokens = part + [0] * (count - len(part))
        logits = run(prefill[count], tokens, place, last=np.array([len(part) - 1], np.int32))
        place += len(part)
    else:
        logits = run(decode, ids[place : place + 1], place)
        place += 1

while place < about["context"]:
    token = int(np.argmax(np.reshape(logits, -1)[: about["tokens"]]))  # rows beyond the tokenizer are padding
    if token in about["ends"]:
        break
    ids.append(token)
    text = tokenizer.decode(ids)  # of all tokens, as spaces and characters may depend on the token before
    if not text.endswith("\\N{REPLACEMENT CHARACTER}"):  # the last character is complete
        print(text[len(shown) :], end="", flush=True)
        shown = text
    logits = run(decode, [token], place)
    place += 1
print(tokenizer.decode(ids)[len(shown) :])
'''

_RUN = '''def functions(name):
    units = ct.ComputeUnit.CPU_AND_NE
    return [ct.models.MLModel(str(HERE / file), function_name=name, compute_units=units) for file in about["models"]]


def run(models, tokens, position, **last):
    """Returns the logits. Each package runs some of the layers, and passes its result to the next package."""
    given = {"tokens" if last else "token": np.array(tokens, np.int32)}
    place = {"position": np.array([position], np.int32)}
    for i, (model, state) in enumerate(zip(models, states)):
        ends = last if i + 1 == len(models) else {}
        made = model.predict({**given, **place, **ends}, state)
        given = {"hidden": made.get("hidden_after")}
    return made["logits"]'''

_OPEN = """decode = functions("decode")
prefill = {count: functions(name) for name, count in about["functions"].items() if count > 1}
states = [model.make_state() for model in decode]  # keys and values, which all functions read and write"""

_RUN_WITH_PORTS = '''def functions(name):
    units = ct.ComputeUnit.CPU_AND_NE
    return [ct.models.MLModel(str(HERE / file), compute_units=units) for file in about["models"][name]]


def run(models, tokens, position, **last):
    """Returns the logits. Each package runs some of the layers, and passes its result to the next package. The new rows
    of the cache are outputs."""
    given = {"tokens" if last else "token": np.array(tokens, np.int32)}
    place = {"position": np.array([position], np.int32)}
    for i, (model, cache) in enumerate(zip(models, caches)):
        ends = last if i + 1 == len(models) else {}
        made = model.predict({**given, **place, **ends, **cache})
        for name, rows in cache.items():
            rows[:, position : position + len(tokens)] = made["new_" + name]
        given = {"hidden": made.get("hidden_after")}
    return made["logits"]'''

_OPEN_WITH_PORTS = """decode = functions("decode")
prefill = {count: functions(name) for name, count in about["functions"].items() if count > 1}
caches = [{name: np.zeros(shape, np.float16) for name, shape in ports.items()} for ports in about["caches"]]"""


def script(has_states: bool) -> str:
    """Returns the script for packages whose cache is a state, or else an input with its new rows as outputs."""
    run, opened = (_RUN, _OPEN) if has_states else (_RUN_WITH_PORTS, _OPEN_WITH_PORTS)
    return _SCRIPT.replace("# run", run).replace("# open", opened)
