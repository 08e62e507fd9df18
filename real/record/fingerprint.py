"""What a run was started on, as digests: a resumed run must find the same model and problems."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from lab.errors import UserError
from real.record.tensor_files import file_digest
from real.run import Run

_MODEL_FILES = {".json", ".safetensors", ".txt", ".model", ".jinja", ".tiktoken"}
"""Kinds of file that decide what a model folder loads as; a README does not."""


def fingerprint(run: Run) -> dict[str, Any]:
    """Digests of the model folder's files, and of the problems as the model sees them."""
    model, prompts = Path(run.policy.tokenizer.name_or_path), run.prompts
    files = sorted(p for p in model.iterdir() if p.suffix in _MODEL_FILES and p.is_file())
    with ThreadPoolExecutor(4) as pool:  # hashing lets go of the interpreter
        digests = list(pool.map(file_digest, files))
    rows = [
        (problem.id, problem.answer, tokens)
        for problem, tokens in zip(prompts.problems, prompts.tokens, strict=True)
    ]
    return {
        "model": dict(zip((p.name for p in files), digests, strict=True)),
        "problems": hashlib.sha256(msgspec.json.encode(rows)).hexdigest(),
    }


def check_unchanged(then: dict[str, Any], now: dict[str, Any], config_model: str | None) -> None:
    """Refuse other problems or another model.

    Args:
        then: `fingerprint` when the run was started.
        now: that of today.
        config_model: named in the message.

    Raises:
        UserError: they differ; the message says in what.
    """
    before, after = then.get("model", {}), now["model"]
    names = sorted(n for n in before.keys() | after.keys() if before.get(n) != after.get(n))
    if names:
        raise UserError(
            f"model {config_model or 'of the tiny task'}: changed since the run was started "
            f"({', '.join(names)}); put the old files back or start a new run"
        )
    if then.get("problems") != now["problems"]:
        raise UserError(
            "problems: changed since the run was started; put the old file back or start a new run"
        )
