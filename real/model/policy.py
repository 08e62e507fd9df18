"""The language model that is trained: loaded from a local folder, with its tokenizer."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging
from transformers.utils.import_utils import (
    is_flash_attn_2_available,
    is_flash_attn_3_available,
)

from lab.errors import UserError, first_line
from real.model.folder import check_folder
from real.model.memory import in_phase
from real.model.wide_head import widen_head

_LARGE = 10**7
"""Weights from which on a faster data type is worth a notice."""
LOAD_ERRORS = (
    *(OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError),
    SafetensorError,
)
"""Exceptions of transformers and safetensors for incomplete, damaged or unknown folders."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A causal language model and what is needed to talk to it."""

    model: Any
    """In evaluation mode for good: dropout would move the ratio away from 1 at no update."""
    tokenizer: Any
    eos_token_ids: tuple[int, ...]
    """Tokens that end a response; empty where the model has none."""
    pad_token_id: int
    device: torch.device

    @property
    def folder(self) -> Path:
        """The folder that it was loaded from."""
        return Path(self.tokenizer.name_or_path)

    @property
    def max_positions(self) -> int | None:
        """Longest sequence that the model has positions for, if it says so."""
        return max_positions(self.model)

    def texts(self, tokens_RT: torch.Tensor, lengths_R: torch.Tensor) -> list[str]:
        """Texts of responses (R, T) of the given lengths, special tokens left out.

        Responses of equal tokens are decoded once: late in training most of them are.
        """
        keys = [
            tuple(row[:length])
            for row, length in zip(tokens_RT.tolist(), lengths_R.tolist(), strict=True)
        ]
        distinct = list(dict.fromkeys(keys))
        decoded = self.tokenizer.batch_decode(
            [list(key) for key in distinct], skip_special_tokens=True
        )
        text_of = dict(zip(distinct, decoded, strict=True))
        return [text_of[key] for key in keys]


def max_positions(model: Any) -> int | None:
    """Return the longest sequence that the model has positions for; None if it names no bound."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


def load_policy(
    folder: str | Path,
    device: str = "auto",
    dtype: str = "float32",
    attention: str = "auto",
    head_dtype: str = "model",
) -> Policy:
    """Load a causal language model and its tokenizer from a local folder.

    Only safetensors weights and architectures that transformers knows are loaded; nothing is
    downloaded and no code from the folder runs.

    Args:
        folder: as `save_pretrained` writes it.
        device: `auto`, `cpu` or `cuda`.
        dtype: of the weights.
        attention: name of the kernel in transformers; `auto` is what it would choose.
        head_dtype: of the logits; `float32`, or `model` for that of the weights.

    Raises:
        UserError: the folder is missing, incomplete or damaged, or there is no such device or
            kernel.
    """
    folder = Path(folder)
    chosen_device = pick_device(device)
    check_folder(folder)
    with quiet():
        tokenizer = _load_tokenizer(folder)
        model = _load_model(folder, getattr(torch, dtype), attention)
    if head_dtype == "float32":
        widen_head(model)
    n_embeddings = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > n_embeddings:
        raise UserError(
            f"model {folder}: the tokenizer has {len(tokenizer)} tokens, the model {n_embeddings}; "
            "put the model's own tokenizer into the folder"
        )
    ends = _end_tokens(model, tokenizer)
    pad = next((i for i in (tokenizer.pad_token_id, *ends) if i is not None), 0)
    with in_phase("load"):
        model = model.to(chosen_device).eval()
    return Policy(model, tokenizer, ends, pad, chosen_device)


def precision_notice(policy: Policy) -> list[str]:
    """Return advice to train in bfloat16 on a CPU with instructions for it; none for tiny models.

    Small models gain nothing: there the time goes into other things than matrix products.
    """
    n_weights = policy.model.num_parameters()
    in_float32 = policy.model.dtype == torch.float32 and policy.device.type == "cpu"
    if not in_float32 or n_weights < _LARGE or not _cpu_has_bfloat16():
        return []
    return [
        "this CPU has bfloat16 instructions: --dtype bfloat16 makes matrix products faster and "
        "halves the memory of the weights"
    ]


def _cpu_has_bfloat16() -> bool:
    # torch has no public name for these; a version without them gives no advice.
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, lambda: False)() for name in names)


def pick_device(name: str) -> torch.device:
    """The device of that name; `auto` is a GPU where there is one.

    Raises:
        UserError: a GPU was asked for and there is none.
    """
    has_gpu = torch.cuda.is_available()
    if name == "cuda" and not has_gpu:
        raise UserError("device = 'cuda': torch sees no GPU here; use cpu or auto")
    return torch.device("cuda" if has_gpu and name != "cpu" else "cpu")


def _load_tokenizer(folder: Path) -> Any:
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except LOAD_ERRORS as error:
        raise UserError(
            f"model {folder}: no tokenizer could be loaded ({first_line(error)}); "
            "save the model's tokenizer into the folder"
        ) from error
    if len(tokenizer) == 0:
        raise UserError(f"model {folder}: the tokenizer is empty; save the model's own into it")
    return tokenizer


def _check_attention(name: str) -> None:
    availability = {
        "flash_attention_2": is_flash_attn_2_available,
        "flash_attention_3": is_flash_attn_3_available,
    }
    if name in availability and not availability[name]():
        raise UserError(
            f"attention = {name!r}: its package is not installed or sees no GPU; "
            "install flash-attn, or take sdpa"
        )


def _load_model(folder: Path, dtype: torch.dtype, attention: str) -> Any:
    loader: Any = AutoModelForCausalLM
    _check_attention(attention)
    kernel = {} if attention == "auto" else {"attn_implementation": attention}
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        with in_phase("load"):
            model, info = loader.from_pretrained(
                str(folder),
                use_safetensors=True,
                dtype=dtype,
                output_loading_info=True,
                **options,
                **kernel,
            )
    except LOAD_ERRORS as error:
        raise UserError(
            f"model {folder}: could not be loaded ({first_line(error)}); "
            "give a causal language model with safetensors weights"
        ) from error
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise UserError(
            f"model {folder}: {len(missing)} weights are missing, {missing[0]} for one; "
            "give a folder that holds a whole causal language model"
        )
    return model


def _end_tokens(model: Any, tokenizer: Any) -> tuple[int, ...]:
    named = model.generation_config.eos_token_id if model.generation_config else None
    model_ids: Sequence[int] = [named] if isinstance(named, int) else (named or [])
    tokenizer_ids = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
    return tuple(dict.fromkeys([*model_ids, *tokenizer_ids]))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Loading says nothing: its errors are reported by the exceptions."""
    level = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(logging.CRITICAL)
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()
