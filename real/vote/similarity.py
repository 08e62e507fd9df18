"""Similarities of the responses to one problem.

By default texts are bags of character n-grams, counted into buckets by a checksum: no model, no
download, equal on every machine. An embedding model in a local folder may take their place, as in
EVOL-RL, whose embedder sees meaning where n-grams see wording.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModel, AutoTokenizer

from lab.errors import UserError, first_line
from real.model.folder import check_folder
from real.model.policy import LOAD_ERRORS, max_positions, pick_device, quiet

SIZES = (3, 4, 5)
"""Characters of an n-gram."""
BUCKET_BITS = 12
"""N-grams are counted in 2 to this many buckets."""
MOST_CHARACTERS = 20_000
"""Of a longer text this much is looked at."""
_TEXTS = 64
"""So many texts are cut into n-grams at once."""
_BASE, _MIX = np.uint64(1_000_003), np.uint64(0x9E3779B97F4A7C15)


Embedder = Callable[[Sequence[str]], NDArray[np.float32]]
"""Texts to (n, E) vectors of any length."""

_ROWS = 32
"""Texts that go through the model together."""
_MOST_TOKENS = 512


def similarities(
    texts_PK: Sequence[Sequence[str]], embedder: Embedder | None = None
) -> NDArray[np.float64]:
    """Cosine similarities of the responses to each problem.

    Every text is embedded once, however often it comes.

    Args:
        texts_PK: K texts of each of P problems.
        embedder: of texts, see `load_embedder`; bags of n-grams if None.

    Returns:
        (P, K, K) in [-1, 1], symmetric; 1 between equal texts, else 0 where a vector is zero, as an
        empty text's is. NaN where an embedder's vector is not finite.
    """
    distinct = list(dict.fromkeys(chain.from_iterable(texts_PK)))
    index_of = {text: row for row, text in enumerate(distinct)}
    vectors_nE = (embedder or ngrams)(distinct)
    matrices = []
    for texts_K in texts_PK:
        row_of = {text: row for row, text in enumerate(dict.fromkeys(texts_K))}
        vectors = vectors_nE[[index_of[text] for text in row_of]]
        places_K = np.array([row_of[text] for text in texts_K])
        matrices.append(_cosines(vectors)[places_K[:, None], places_K])
    return np.stack(matrices)


def ngrams(texts: Sequence[str]) -> NDArray[np.float32]:
    """(n, buckets) counts of the texts' n-grams of `SIZES` characters.

    A run of white space counts as one space, and there is one before and after each text, so that
    even a single character makes an n-gram.
    """
    parts = [_count(texts[start : start + _TEXTS]) for start in range(0, len(texts), _TEXTS)]
    return np.concatenate(parts) if parts else np.zeros((0, 2**BUCKET_BITS), np.float32)


def _count(texts: Sequence[str]) -> NDArray[np.float32]:
    cleaned = [f" {' '.join(text[:MOST_CHARACTERS].split())} " for text in texts]
    # A surrogate without its other half is a character like any other here.
    codes = np.frombuffer("".join(cleaned).encode("utf-32-le", "surrogatepass"), np.uint32)
    rows = np.repeat(np.arange(len(texts)), [len(text) for text in cleaned])
    places = []
    for size in SIZES:
        n_grams = max(0, len(codes) - size + 1)
        sums = np.full(n_grams, size, np.uint64)
        for offset in range(size):
            sums = sums * _BASE + codes[offset : offset + n_grams]
        buckets = (sums * _MIX) >> np.uint64(64 - BUCKET_BITS)
        first, last = rows[:n_grams], rows[size - 1 :]
        inside = first == last
        places.append((first[inside] << BUCKET_BITS) + buckets[inside].astype(np.int64))
    counts = np.bincount(np.concatenate(places), minlength=len(texts) << BUCKET_BITS)
    return counts.reshape(len(texts), -1).astype(np.float32)


def _cosines(vectors_nE: NDArray[np.float32]) -> NDArray[np.float64]:
    """(n, n) of different texts; 1 on the diagonal."""
    # Most buckets are empty in all of a problem's texts. Sums over counts are exact in any order.
    vectors = vectors_nE[:, vectors_nE.any(axis=0)].astype(np.float64)
    products = vectors @ vectors.T
    sizes = np.sqrt(np.diagonal(products))
    sizes = np.where(sizes == 0, 1.0, sizes)
    cosines = np.clip(products / (sizes * sizes[:, None]), -1.0, 1.0)
    finite = np.isfinite(sizes)
    cosines[finite, finite] = 1.0
    return cosines


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
    chosen_device = pick_device(device)
    check_folder(folder, "embedder")
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(str(folder), **options)
            model = AutoModel.from_pretrained(str(folder), use_safetensors=True, **options)
    except LOAD_ERRORS as error:
        raise UserError(
            f"embedder {folder}: could not be loaded ({first_line(error)}); "
            "give a text encoder with safetensors weights and its tokenizer"
        ) from error
    return ModelEmbedder(model.to(chosen_device).eval(), tokenizer)


class ModelEmbedder:
    """Mean of an encoder's last hidden states over the tokens of a text."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        """Set up.

        Args:
            model: gives `last_hidden_state`; in evaluation mode.
            tokenizer: of the model; longer texts than it has positions for are cut.
        """
        self.model, self.tokenizer = model, tokenizer
        positions = max_positions(model) or _MOST_TOKENS
        self.most_tokens = min(_MOST_TOKENS, positions, tokenizer.model_max_length)

    @torch.no_grad()
    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(n, E) one vector a text; 0 for a text without tokens."""
        ids: list[list[int]] = [
            self.tokenizer(text, truncation=True, max_length=self.most_tokens)["input_ids"]
            for text in texts
        ]
        vectors = np.zeros((len(texts), self.model.config.hidden_size), np.float32)
        # Texts of like length together: little padding.
        order = sorted((i for i in range(len(ids)) if ids[i]), key=lambda i: len(ids[i]))
        for start in range(0, len(order), _ROWS):
            rows = order[start : start + _ROWS]
            vectors[rows] = self._embed([ids[i] for i in rows])
        return vectors

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
