"""The pooling of a sentence-transformers folder: modules.json and the configs that it names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hexane.errors import Error
from hexane.importers.encoders.config import short

POOLINGS = ("mean", "cls", "max", "mean_sqrt_len_tokens")
MODES = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
}
HARMLESS = ("word_embedding_dimension", "embedding_dimension", "include_prompt")
KINDS = ("Transformer", "Pooling", "Normalize")


@dataclass(frozen=True, slots=True)
class Pooling:
    """The pooling of a text's vectors. mode: one of `POOLINGS`; normalized: vectors have length 1; most: longer texts
    are cut to this many tokens, 0 for the model's limit; lower: texts are lower-cased; prompt: a prefix of each text.
    given: false if the folder has no pooling, in which case sentence-transformers uses the mean."""

    mode: str = "mean"
    normalized: bool = False
    most: int = 0
    lower: bool = False
    prompt: str = ""
    given: bool = False


def pooling_in(where: str, modules: Any, read: Callable[[str], Mapping[str, Any] | None]) -> Pooling:
    """Returns the pooling. modules: the contents of modules.json; read: returns the object in a file of the folder, or
    None if the file is missing.

    Raises Error, with the prefix `where`, for unsupported modules and poolings.
    """
    if not isinstance(modules, list) or not all(isinstance(one, dict) for one in modules):
        raise Error(f"{where}: modules.json: got {short(modules)}, need a list of modules")
    kinds = [str(one.get("type")).rpartition(".")[2] for one in modules]
    if kinds not in (list(KINDS), list(KINDS[:2])):
        raise Error(
            f"{where}: modules.json: got the modules {', '.join(kinds) or 'none'}, need Transformer, Pooling and maybe"
            " Normalize"
        )
    if modules[0].get("path", "") not in ("", "."):
        raise Error(f"{where}: modules.json: got the path {short(modules[0]['path'])} of Transformer, need the folder")
    path = modules[1].get("path")
    fields = read(f"{path}/config.json") if isinstance(path, str) and path else None
    if fields is None:
        raise Error(f"{where}: modules.json: got no config.json of Pooling, need {short(path)}/config.json")
    text = read("sentence_bert_config.json") or {}
    most, lower = text.get("max_seq_length"), text.get("do_lower_case", False)
    if most is not None and (type(most) is not int or most < 1):
        raise Error(f"{where}: sentence_bert_config.json: max_seq_length: got {short(most)}, need a number of tokens")
    prompt = _prompt(where, read("config_sentence_transformers.json") or {})
    if prompt and fields.get("include_prompt") is False:
        raise Error(f"{where}: include_prompt: got false and a prompt, need one of them")
    return Pooling(_mode(where, fields), kinds[-1] == "Normalize", most or 0, lower is True, prompt, True)


def _mode(where: str, fields: Mapping[str, Any]) -> str:
    named = fields.get("pooling_mode")
    on = [str(named)] if named is not None else []
    for name in sorted(fields):
        if name in HARMLESS or name == "pooling_mode" or fields[name] in (None, False):
            continue
        on.append(MODES.get(name, name))
    if len(set(on)) != 1 or on[0] not in POOLINGS:
        raise Error(f"{where}: pooling: got {', '.join(on) or 'none'}, need one of {', '.join(POOLINGS)}")
    return on[0]


def _prompt(where: str, fields: Mapping[str, Any]) -> str:
    name, prompts = fields.get("default_prompt_name"), fields.get("prompts") or {}
    if name is None:
        return ""
    if not isinstance(prompts, dict) or not isinstance(prompts.get(name), str):
        raise Error(f"{where}: default_prompt_name: got {short(name)}, need the name of one of its prompts")
    return str(prompts[name])
