"""A byte-level BPE vocabulary learned from the policy's own conversations; every digit is a token of its own."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from examples.tiny_policy.template import PAD, TAGS, TURN_END, chat_template, opening, parts
from examples.tiny_policy.trajectories import conversation, draw_problem, draw_setting

CONVERSATIONS = 5000
# ASCII classes only: engines that reimplement the split then need no Unicode tables.
WORDS = r" ?[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+"


def build_tokenizer(size: int, rng: random.Random) -> PreTrainedTokenizerFast:
    """A tokenizer of `size` tokens with the chat template. The tags of calls survive decoding: they are not special."""
    bpe = Tokenizer(models.BPE())
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(WORDS), "isolated"), to_bytes])
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(TAGS),
        special_tokens=[PAD, "<|im_start|>", TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(_corpus(rng), trainer)
    bpe.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=TURN_END,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )
    tokenizer.chat_template = chat_template()
    return tokenizer


def _corpus(rng: random.Random) -> Iterator[str]:
    for _ in range(CONVERSATIONS):
        setting = draw_setting(rng)
        text = opening(setting) + "".join(part.text for part in parts(conversation(draw_problem(rng, setting), rng)))
        yield re.sub(r"<\|\w+\|>|</?tool_(?:call|response)>", "\n", text)
