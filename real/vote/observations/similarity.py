"""How much the responses to one problem resemble each other.

By default texts are bags of character n-grams, counted into buckets by a checksum: no model, no
download, equal on every machine. An embedding model in a local folder may take their place, as in
EVOL-RL, whose embedder sees meaning where n-grams see wording.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

SIZES = (3, 4, 5)
"""Characters of an n-gram."""
BUCKET_BITS = 12
"""N-grams are counted in 2 to this many buckets."""
MOST_CHARACTERS = 20_000
"""Of a longer text this much is looked at."""
_TEXTS = 64
"""So many texts are cut into n-grams at once."""
_BASE, _MIX = np.uint64(1_000_003), np.uint64(0x9E3779B97F4A7C15)


class Embedder(Protocol):
    """Turns texts into vectors."""

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(n, E) one vector a text, of any length."""
        ...


def similarities(
    texts_PK: Sequence[Sequence[str]], embedder: Embedder | None = None
) -> NDArray[np.float64]:
    """Cosine similarities of the responses to each problem.

    Every text is embedded once, however often it comes.

    Args:
        texts_PK: K texts of each of P problems.
        embedder: of texts, see `real.vote.observations.embedding`; bags of n-grams if None.

    Returns:
        (P, K, K) in [-1, 1], symmetric; 1 between equal texts, else 0 where a vector is zero, as an
        empty text's is. NaN where an embedder's vector is not finite.
    """
    distinct = list(dict.fromkeys(chain.from_iterable(texts_PK)))
    place_of = {text: place for place, text in enumerate(distinct)}
    vectors_nE = (embedder or ngrams)(distinct)
    found = []
    for texts_K in texts_PK:
        own = {text: place for place, text in enumerate(dict.fromkeys(texts_K))}
        vectors = vectors_nE[[place_of[text] for text in own]]
        places_K = np.array([own[text] for text in texts_K])
        found.append(_cosines(vectors)[places_K[:, None], places_K])
    return np.stack(found)


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
        for place in range(size):
            sums = sums * _BASE + codes[place : place + n_grams]
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
    found = np.clip(products / (sizes * sizes[:, None]), -1.0, 1.0)
    finite = np.isfinite(sizes)
    found[finite, finite] = 1.0
    return found
