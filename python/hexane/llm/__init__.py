"""Language models, encoders and speech models, loaded from a file or folder and ready to run (docs/llm.md)."""

from hexane.llm.answer import Answer
from hexane.llm.conversation import Conversation
from hexane.llm.encoder import TextEncoder
from hexane.llm.export import Exported, export
from hexane.llm.facts import Facts, facts
from hexane.llm.find import find_model
from hexane.llm.image_encoder import ImageEncoder
from hexane.llm.loading import load
from hexane.llm.model import LanguageModel
from hexane.llm.speech import SpeechModel
from hexane.llm.text_image_encoder import TextImageEncoder

__all__ = [
    "Answer",
    "Conversation",
    "Exported",
    "Facts",
    "ImageEncoder",
    "LanguageModel",
    "SpeechModel",
    "TextEncoder",
    "TextImageEncoder",
    "export",
    "facts",
    "find_model",
    "load",
]
