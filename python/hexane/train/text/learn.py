"""Learns a tokenizer (byte-pair encoding) from a text."""

from collections.abc import Iterable

from hexane.errors import Error

MARK = "<|endoftext|>"  # the token with id 0, which begins and ends documents
BYTES = 256
MOST_VOCAB = 1 << 20


def learn_tokenizer(documents: Iterable[str], vocab: int) -> bytes:
    """Returns a tokenizer.json of at most `vocab` tokens: a mark between documents, all bytes, and the most frequent
    joins in the documents (byte-pair encoding). The tokenizer can encode any text. Equal documents give equal files.

    Raises Error for fewer than 257 tokens, and without the package tokenizers.
    """
    where = "[train.learn_tokenizer]"
    if isinstance(vocab, bool) or not isinstance(vocab, int) or not BYTES < vocab <= MOST_VOCAB:
        raise Error(f"{where} vocab: got {vocab!r}, need {BYTES + 1} (all bytes and a mark) to {MOST_VOCAB}")
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    except ImportError:
        raise Error(f"{where} got no package tokenizers, need: pip install 'hexane[train]'") from None
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[MARK],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{MARK} $A", special_tokens=[(MARK, 0)])
    return str(tokenizer.to_str(pretty=True)).encode()
