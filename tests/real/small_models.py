"""Small random language models with a tokenizer of characters, in folders."""

import torch
import transformers
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import ByteLevel, Split
from transformers import PreTrainedTokenizerFast

BOXES = [f"\\boxed{{{answer}}}" for answer in range(4)]
SPECIAL = ["<unk>", "<pad>", "<eos>"]
ENDS = {"pad_token": "<pad>", "eos_token": "<eos>"}


def make_tokenizer(chat_template=None, **options):
    """One printable character one token, and some boxed answers, so random text has answers."""
    tokens = [*SPECIAL, *BOXES, *map(chr, range(32, 127)), "\n"]
    backend = Tokenizer(WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="<unk>"))
    backend.pre_tokenizer = Split(Regex(r"[\s\S]"), behavior="isolated")
    options |= {"unk_token": "<unk>", "chat_template": chat_template}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **ENDS, **options)


def byte_level(tokens):
    """A tokenizer of these tokens, spelled as byte-level vocabularies do."""
    backend = Tokenizer(BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = ByteLevelDecoder()
    return with_ends(backend)


def with_ends(backend):
    """With <pad> and <eos>, and no blank of a text taken away."""
    backend.add_special_tokens([AddedToken("<pad>"), AddedToken("<eos>")])
    options = {**ENDS, "clean_up_tokenization_spaces": False}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **options)


def decoder_sizes(vocabulary, **changes):
    """Sizes of a small decoder, for the configs of Llama, Qwen and their like."""
    sizes = {
        "vocab_size": vocabulary, "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "max_position_embeddings": 64, "initializer_range": 0.3,
    }  # fmt: skip
    return sizes | changes


def causal(name, seed=0, **sizes):
    """A language model of random weights."""
    torch.manual_seed(seed)
    config = getattr(transformers, f"{name}Config")(**sizes)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def llama(vocabulary, positions):
    one = {"num_hidden_layers": 1, "num_key_value_heads": 2, "initializer_range": 0.02}
    ends = {"eos_token_id": 2, "bos_token_id": None, "pad_token_id": 1}
    sizes = decoder_sizes(vocabulary, max_position_embeddings=positions, **one, **ends)
    return causal("Llama", **sizes)


def save_model(folder, make=llama, positions=2048, spare=0, chat_template=None, extra=()):
    """Save a model and its tokenizer; the model has `spare` more embeddings than tokens.

    `extra` are further special tokens.
    """
    tokenizer = make_tokenizer(chat_template, extra_special_tokens=[*extra])
    torch.manual_seed(0)
    make(len(tokenizer) + spare, positions).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)
