"""Reasons why operators are unsupported, with advice."""

from hexane.importers.tflite.model import Operator

REFUSED = {
    "text": "text, which has no numbers: need the network behind it",
    "hashtable": "a table of keys, need its values as a constant",
    "random": "random numbers, whose generator is LiteRT's own, need them as an input",
}
_KINDS = {
    "hashtable": "HASHTABLE HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE HASHTABLE_LOOKUP",
    "text": "SKIP_GRAM LSH_PROJECTION",
    "random": "RANDOM_STANDARD_NORMAL RANDOM_UNIFORM MULTINOMIAL STABLEHLO_RNG_BIT_GENERATOR",
}
_BUILTIN = {name: kind for kind, names in _KINDS.items() for name in names.split()}
CUSTOM = {
    "edgetpu-custom-op": "a program for an Edge TPU, need the model that it was compiled from",
    "ethos-u": "a program for an Ethos-U, need the model that it was compiled from",
    "AudioSpectrogram": "a spectrogram of sound, need the network behind it",
    "Mfcc": "cepstral coefficients of sound, need the network behind it",
    "Convolution2DTransposeBias": "MediaPipe's transposed convolution, need TRANSPOSE_CONV",
    "MaxPoolingWithArgmax2D": "MediaPipe's pool with places, need MAX_POOL_2D",
    "MaxUnpooling2D": "MediaPipe's pool backwards, need builtin ops",
    "TransformTensorBilinear": "MediaPipe's crop of a rotated region, need builtin ops",
    "TransformLandmarks": "MediaPipe's landmarks in a rotated region, need builtin ops",
    "Resampler": "sampling at computed places, need builtin ops",
    "TFSentencepieceTokenizeOp": REFUSED["text"],
    "CIRCULAR_BUFFER": "a buffer of TensorFlow Lite Micro that is filled over several calls, need variables",
}


def reason(op: Operator) -> str:
    if not op.is_custom:
        kind = _BUILTIN.get(op.name)
        return REFUSED[kind] if kind else "an op that has no counterpart here, need another one"
    if op.name.startswith("Flex"):
        return f"the TensorFlow op {op.name.removeprefix('Flex')!r} (select TF ops), need builtin ops"
    if op.name.startswith("Signal"):
        return f"the custom op {op.name!r}, signal processing of TensorFlow Lite Micro, need the network behind it"
    return f"the custom op {op.name!r}, {CUSTOM.get(op.name, 'code of its author, need builtin ops')}"
