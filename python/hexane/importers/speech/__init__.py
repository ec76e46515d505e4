"""Speech models from folders of Hugging Face: Whisper, an encoder of sound and a decoder that writes its text."""

from hexane.importers.speech.config import SpeechConfig, config_in
from hexane.importers.speech.opened import OpenedSpeech, holds_speech, read_speech

__all__ = ["OpenedSpeech", "SpeechConfig", "config_in", "holds_speech", "read_speech"]
