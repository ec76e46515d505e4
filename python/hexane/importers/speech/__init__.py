"""Speech models in Hugging Face folders: Whisper, which has an encoder of audio and a decoder of text."""

from hexane.importers.speech.config import SpeechConfig, config_in
from hexane.importers.speech.opened import OpenedSpeech, holds_speech, read_speech

__all__ = ["OpenedSpeech", "SpeechConfig", "config_in", "holds_speech", "read_speech"]
