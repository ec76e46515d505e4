"""Text encoders from folders of Hugging Face: BERT, DistilBERT, RoBERTa, XLM-RoBERTa, CamemBERT and MPNet."""

from hexane.importers.encoders.config import EncoderConfig
from hexane.importers.encoders.files import EncoderFiles, body, holds_encoder, read_config, read_encoder
from hexane.importers.encoders.graph import encoder, outputs_of
from hexane.importers.encoders.opened import OpenedEncoder
from hexane.importers.encoders.pooling import POOLINGS, Pooling

__all__ = [
    "POOLINGS",
    "EncoderConfig",
    "EncoderFiles",
    "OpenedEncoder",
    "Pooling",
    "body",
    "encoder",
    "holds_encoder",
    "outputs_of",
    "read_config",
    "read_encoder",
]
