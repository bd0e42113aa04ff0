"""Small tokenizers of all common shapes, trained on a few lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tests.support.template_families import Family

TEXT = [
    "The quick brown fox jumps over the lazy dog. 1234567890 3.14159",
    'Tools: {"type": "function", "function": {"name": "bash", "parameters": {"command": "ls -l /tmp"}}}',
    "def f(x):\n    return x + 1\n\nprint(f(41))  # forty-two\n<tool_response>\n42\n</tool_response>",
    "Straße, café, naïve; 漢字とかな; Ελληνικά; русский; 🎉🚀 and more text for merges to be found in text, text.",
] * 4
VOCABULARY = 600


def byte_level_bpe() -> Tokenizer:
    """Shape of Qwen: bytes, no space in front, words with their leading space."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def digits_bpe() -> Tokenizer:
    """Shape of Llama 3: bytes after an expression of its own that cuts digits into threes."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    words = Regex(r"(?i:'s|'t|'re|'ll)|[^\r\n\w]?\p{L}+|\p{N}{1,3}| ?[^\s\w]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def metaspace_bpe() -> Tokenizer:
    """Shape of Llama 2 and Mistral: ▁ for spaces, one before the first word, bytes as tokens of their own."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY + 256, special_tokens=["<unk>", *bytes_], limit_alphabet=60, show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def unigram() -> Tokenizer:
    """Shape of T5: pieces by likelihood, a space before everything, unknown characters are lost."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def word_piece() -> Tokenizer:
    """Shape of BERT: lower case, white space lost, continuing pieces begin with ##."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    trainer = trainers.WordPieceTrainer(vocab_size=VOCABULARY, special_tokens=["[UNK]"], show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


SHAPES: dict[str, Callable[[], Tokenizer]] = {
    "byte-level BPE": byte_level_bpe,
    "digits BPE": digits_bpe,
    "metaspace BPE": metaspace_bpe,
    "unigram": unigram,
    "WordPiece": word_piece,
}


LOSSLESS = {"byte-level BPE", "digits BPE"}
"""Shapes that decode exactly the encoded text; the others lose white space, letters or the ▁ of special tokens."""


def with_shapes(names: Iterable[str]) -> list[Any]:
    """Pair names with shapes, for `parametrize`: each with the first shape and with one other, and long with the rest."""
    return [
        pytest.param(shape, name, marks=[] if place in (0, 1 + number % (len(SHAPES) - 1)) else [pytest.mark.long])
        for number, name in enumerate(names)
        for place, shape in enumerate(SHAPES)
    ]


@cache
def trained(shape: str) -> str:
    text: str = SHAPES[shape]().to_str()
    return text


def fitted(shape: str, family: Family) -> Any:
    """Make a transformers tokenizer of the shape with the family's tokens and template."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(trained(shape)),
        bos_token=family.special[0],
        eos_token=family.stops[0],
        additional_special_tokens=family.special,
    )
    tokenizer.chat_template = family.template
    return tokenizer
