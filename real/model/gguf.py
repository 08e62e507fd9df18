"""Import of GGUF files."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.import_utils import is_gguf_available

from lab.base.errors import UserError
from lab.base.files import whole_folder
from real.model.policy import quiet

_MAGIC = b"GGUF"


def import_gguf(file: Path, out: Path) -> Any:
    """Write model and tokenizer of a GGUF file, which other programs run, as a folder to train.

    Quantized weights are turned into float32. The folder appears whole or not at all. Returns the
    model.
    """
    _check_gguf(file, out)
    with whole_folder(out) as folder, quiet():  # made before anything is read, which takes longer
        model, tokenizer = _read_gguf(file)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return model


def _read_gguf(file: Path) -> tuple[Any, Any]:
    """Return model and tokenizer; a model that tells of its quantization could not be saved."""
    folder = str(file.parent)
    where: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **where)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True, **where
        )
    except (ValueError, LookupError, NotImplementedError, OSError, struct.error) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{file}: transformers cannot read it ({reason}); give a whole file of a causal "
            "language model that transformers knows, or the model's safetensors folder"
        ) from error
    model, found = loaded
    if found["missing_keys"]:  # they would be random
        raise UserError(f"{file}: lacks {min(found['missing_keys'])}; give a whole file")
    model.hf_quantizer = None
    del model.config.quantization_config
    return model, tokenizer


def _check_gguf(file: Path, out: Path) -> None:
    """Refuse at once what could only fail after minutes."""
    if out.exists():
        raise UserError(f"{out}: exists already; give a folder that does not")
    try:
        with file.open("rb") as opened:
            magic = opened.read(len(_MAGIC))
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{file}: cannot be read ({reason}); give a GGUF file") from error
    if magic != _MAGIC:
        raise UserError(f"{file}: not a GGUF file, which begins with {_MAGIC.decode()}; give one")
    if not is_gguf_available():
        install = "pip install 'ttrl-guard-lab[gguf]'"
        raise UserError(f"gguf not installed, which reads {file.name}; install with {install}")
