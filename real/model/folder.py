"""The local folder of a model, as far as it can be checked without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lab.base.errors import UserError, first_line
from lab.base.files import file_digest

PREFIX = "hf:"
KINDS = (".json", ".safetensors", ".txt", ".model", ".jinja", ".tiktoken")
"""Kinds of files that a model is loaded from: no pickled weights and no code."""
_MOST_LAYERS = 10_000
"""Far more than any model has; more would be built for hours before they fail."""


def model_folder(model: str) -> Path:
    """The local folder of a model; one named `hf:owner/name` is fetched from the hub first."""
    if not model.startswith(PREFIX):
        check_folder(Path(model))
        return Path(model)
    from huggingface_hub import snapshot_download

    name = model.removeprefix(PREFIX)
    try:
        # Meta's models hold their weights once more, in another format, in `original`.
        folder = snapshot_download(
            name, allow_patterns=[f"*{kind}" for kind in KINDS], ignore_patterns=["original/*"]
        )
    except (OSError, ValueError) as error:
        raise UserError(
            f"model {model}: could not be fetched ({first_line(error)}); check the name, "
            "the network and whether its licence must be accepted, or give a local folder"
        ) from error
    return Path(folder)


def model_digests(folder: Path) -> dict[str, str]:
    """Return a digest of each file that a model is loaded from, by name."""
    files = sorted(p for p in folder.iterdir() if p.suffix in KINDS and p.is_file())
    with ThreadPoolExecutor(4) as pool:  # hashing lets go of the interpreter
        return dict(zip((p.name for p in files), pool.map(file_digest, files), strict=True))


def changed_files(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the names of the files of which two results of `model_digests` differ."""
    return sorted(n for n in before.keys() | after.keys() if before.get(n) != after.get(n))


def check_folder(folder: Path) -> None:
    """Refuse a folder that is missing or does not look like a model, before anything is loaded."""
    if not (folder / "config.json").is_file():
        for file in [folder] if folder.suffix == ".gguf" else sorted(folder.glob("*.gguf")):
            raise UserError(
                f"model {folder}: {file.name} is a GGUF file, which runs but cannot train; give "
                "the model's safetensors folder, or convert it with `guard-train import-gguf`"
            )
        fault = "lacks config.json" if folder.is_dir() else "no such folder"
        raise UserError(
            f"model {folder}: {fault}; give a local Hugging Face model folder, "
            f"or {PREFIX}owner/name to fetch one"
        )
    layers = _read_object(folder / "config.json").get("num_hidden_layers")
    if isinstance(layers, int) and not 0 < layers <= _MOST_LAYERS:
        raise UserError(f"model {folder}: config.json names {layers} layers; copy it again")
    for index in folder.glob("*.index.json"):
        names = _read_object(index).get("weight_map")
        for name in names.values() if isinstance(names, dict) else [names]:
            if not isinstance(name, str) or Path(name).name != name:
                raise UserError(
                    f"model {folder}: {index.name} names {name!r}, which is no file of the "
                    "folder; copy the folder again"
                )


def _read_object(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        fault = first_line(error)
    else:
        if isinstance(values, dict):
            return values
        fault = "it holds no object"
    raise UserError(
        f"model {path.parent}: {path.name} cannot be read ({fault}); copy the folder again"
    )
