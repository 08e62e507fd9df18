"""Vectors of texts by a small embedding model in a local folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from transformers import AutoModel, AutoTokenizer

from lab.errors import UserError
from real.model.policy import pick_device, quiet

_ROWS = 32
"""Texts that go through the model together."""
_MOST_TOKENS = 512
_LOAD_ERRORS = (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError)


def load_embedder(folder: str | Path, device: str = "auto") -> ModelEmbedder:
    """Load an embedding model and its tokenizer from a local folder.

    Only safetensors weights and architectures that transformers knows are loaded; nothing is
    downloaded and no code from the folder runs.

    Args:
        folder: as `save_pretrained` writes it.
        device: `auto`, `cpu` or `cuda`.

    Raises:
        UserError: the folder is missing, incomplete or damaged, or there is no such device.
    """
    folder = Path(folder)
    place = pick_device(device)
    if not (folder / "config.json").is_file():
        what = "lacks config.json" if folder.is_dir() else "no such folder"
        raise UserError(f"embedder {folder}: {what}; give a local Hugging Face model folder")
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(str(folder), **options)
            model = AutoModel.from_pretrained(str(folder), use_safetensors=True, **options)
    except (*_LOAD_ERRORS, SafetensorError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise UserError(
            f"embedder {folder}: could not be loaded ({reason}); "
            "give a text encoder with safetensors weights and its tokenizer"
        ) from error
    return ModelEmbedder(model.to(place).eval(), tokenizer)


class ModelEmbedder:
    """Mean of an encoder's last hidden states over the tokens of a text."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        """Set up.

        Args:
            model: gives `last_hidden_state`; in evaluation mode.
            tokenizer: of the model; longer texts than it has positions for are cut.
        """
        self.model, self.tokenizer = model, tokenizer
        positions = getattr(model.config, "max_position_embeddings", None) or _MOST_TOKENS
        self.most_tokens = min(_MOST_TOKENS, positions, tokenizer.model_max_length)

    @torch.no_grad()
    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(n, E) one vector a text; 0 for a text without tokens."""
        ids: list[list[int]] = [
            self.tokenizer(text, truncation=True, max_length=self.most_tokens)["input_ids"]
            for text in texts
        ]
        found = np.zeros((len(texts), self.model.config.hidden_size), np.float32)
        # Texts of like length together: little padding.
        order = sorted((i for i in range(len(ids)) if ids[i]), key=lambda i: len(ids[i]))
        for start in range(0, len(order), _ROWS):
            rows = order[start : start + _ROWS]
            found[rows] = self._embed([ids[i] for i in rows])
        return found

    def _embed(self, ids: list[list[int]]) -> NDArray[np.float32]:
        lengths_R = torch.tensor([len(row) for row in ids])
        mask_RT = torch.arange(int(lengths_R.max())) < lengths_R[:, None]
        tokens_RT = torch.zeros(mask_RT.shape, dtype=torch.long)
        tokens_RT[mask_RT] = torch.tensor([token for row in ids for token in row])
        mask_RT = mask_RT.to(self.model.device)
        output = self.model(
            input_ids=tokens_RT.to(self.model.device), attention_mask=mask_RT.long()
        )
        hidden_RTE = output.last_hidden_state.float()
        sums_RE = torch.where(mask_RT[..., None], hidden_RTE, 0.0).sum(1)
        return (sums_RE / mask_RT.sum(1, keepdim=True)).cpu().numpy()
