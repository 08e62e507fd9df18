"""The 32 tokens of the tiny task, and its tokenizer, built in code: nothing is downloaded."""

import re

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
VOCABULARY_SIZE = 32

_SPECIAL = (PAD, EOS, UNKNOWN)
_TEXT = (*"0123456789+-*=>", "\\boxed{", "}")
_N_SPARE = VOCABULARY_SIZE - len(_SPECIAL) - len(_TEXT)
TOKENS = (*_SPECIAL, *_TEXT, *(f"<spare_{i}>" for i in range(_N_SPARE)))
"""Token texts in id order; the spare ones only fill the vocabulary up to 32."""
IDS = {token: i for i, token in enumerate(TOKENS)}
PAD_ID, EOS_ID = IDS[PAD], IDS[EOS]

_BOX = "\\boxed{"


def build_tokenizer() -> PreTrainedTokenizerFast:
    r"""A fast tokenizer: one character one token, except that ``\boxed{`` is one token.

    It adds no token of its own on encoding, drops characters that the task does not have, and
    decodes without extra spaces.
    """
    # Transformers reads the vocabulary of any folder with a Qwen2 model back as byte-level BPE,
    # whatever class and pre-tokenizer were saved. So this is a byte-level BPE without merges.
    backend = Tokenizer(BPE(vocab=IDS, merges=[]))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = ByteLevelDecoder()
    backend.add_tokens([AddedToken(_BOX, normalized=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=64,
    )


def encode(text: str) -> list[int]:
    r"""Token ids of prompt or response text, without the end token.

    Raises:
        ValueError: if ``text`` holds a character that the task does not have.
    """
    pieces = re.findall(r"\\boxed\{|.", text, flags=re.DOTALL)
    unknown = [piece for piece in pieces if piece not in _TEXT]
    if unknown:
        raise ValueError(f"{text!r} holds {unknown[0]!r}, which is no token of the tiny task")
    return [IDS[piece] for piece in pieces]


def decode(ids: list[int]) -> str:
    """The text of ``ids``; special tokens are left out."""
    return "".join(TOKENS[i] for i in ids if TOKENS[i] not in _SPECIAL)
