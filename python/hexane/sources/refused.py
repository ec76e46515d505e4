"""Errors for models that cannot be opened."""

from hexane.errors import UnsupportedError
from hexane.sources.encoder import model_type
from hexane.sources.foreign import Foreign
from hexane.sources.look import Seen

MODELS = (
    "an ONNX model, a Core ML package (.mlpackage), a TFLite model (.tflite), MIL text (.mil), a netplist"
    " (.plist), a Core AI asset (.aimodel){} or the Hugging Face folder of an encoder"
)
# Compiled programs that a command opens besides the models, by its name.
COMPILED = {"info": ", a plan (.hxp), a .hwx or .e5 file", "run": ", a plan (.hxp)"}


def foreign(seen: Seen, kind: Foreign, where: str) -> UnsupportedError:
    """The error for a known kind of file that Hexane does not read, with the advice for this kind."""
    advice = kind.advice.replace("{name}", seen.given or "FILE")
    if "{kind}" in advice:
        advice = advice.replace("{kind}", model_type(seen))
    return UnsupportedError(f"[{where}] {seen.name}: got {kind.title}, need {_models(where)}{_inside(seen)}. {advice}")


def unknown(seen: Seen, where: str) -> UnsupportedError:
    """The error for a folder without a model, and for an object that is no model."""
    if seen.is_folder:
        return UnsupportedError(f"[{where}] {seen.name}: got a folder, need {_models(where)}{_inside(seen)}")
    return UnsupportedError(
        f"[{where}] got {type(seen.value).__name__}, need a Graph, tensors, the path of a model, or the bytes or"
        " ModelProto of an ONNX model; a torch module becomes a Graph by hexane.from_torch"
    )


def _models(where: str) -> str:
    """The list of everything that a command opens."""
    return MODELS.format(COMPILED.get(where, ""))


def _inside(seen: Seen) -> str:
    """The names of models in a folder, as the end of a message."""
    names = sorted(name for name in seen.names if name.endswith((".onnx", ".aimodel", ".mlpackage", ".tflite")))
    return f", such as {', '.join(names[:5])} in it" if names else ""
