"""Text for decoders: tokenizers, files of tokens, and training batches from these files."""

from hexane.train.text.chat import ChatTemplate, read_end_mark
from hexane.train.text.chat_data import ChatData
from hexane.train.text.conversations import Conversations
from hexane.train.text.learn import learn_tokenizer
from hexane.train.text.load import load_chat_template, load_tokenizer
from hexane.train.text.stream import TextStream
from hexane.train.text.token_file import TokenFile, save_conversations, save_tokens, token_dtype
from hexane.train.text.token_record import TokenRecord
from hexane.train.text.tokenizer import NAMES, Tokenizer, find_tokenizer
from hexane.train.text.windows import TokenWindows

__all__ = [
    "NAMES",
    "ChatData",
    "ChatTemplate",
    "Conversations",
    "TextStream",
    "TokenFile",
    "TokenRecord",
    "TokenWindows",
    "Tokenizer",
    "find_tokenizer",
    "learn_tokenizer",
    "load_chat_template",
    "load_tokenizer",
    "read_end_mark",
    "save_conversations",
    "save_tokens",
    "token_dtype",
]
