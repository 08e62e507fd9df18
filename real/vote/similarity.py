"""Similarities of responses: cosines of bags of character n-grams.

N-grams are counted into buckets by a checksum: no model, equal on every machine. EVOL-RL's embedder
sees meaning where n-grams see wording.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SIZES = (3, 4, 5)
BUCKET_BITS = 12
"""N-grams are counted in 2 to this many buckets."""
MOST_CHARACTERS = 20_000
"""Of a longer text this much is looked at."""
_BASE, _MIX = np.uint64(1_000_003), np.uint64(0x9E3779B97F4A7C15)


def similarities(texts_PK: Sequence[Sequence[str]]) -> NDArray[np.float64]:
    """(P, K, K) cosine similarities of the K responses to each of P problems, in [-1, 1].

    1 between equal texts, else 0 where a vector is zero, as an empty text's is.
    """
    matrices = []
    for texts_K in texts_PK:
        row_of = {text: row for row, text in enumerate(dict.fromkeys(texts_K))}
        counts = ngrams(list(row_of))
        # Most buckets are empty in all of the texts. Sums over counts are exact in any order.
        vectors = counts[:, counts.any(axis=0)].astype(np.float64)
        products = vectors @ vectors.T
        sizes = np.sqrt(np.diagonal(products))
        sizes = np.where(sizes == 0, 1.0, sizes)
        cosines = np.clip(products / (sizes * sizes[:, None]), -1.0, 1.0)
        np.fill_diagonal(cosines, 1.0)
        places_K = np.array([row_of[text] for text in texts_K])
        matrices.append(cosines[places_K[:, None], places_K])
    return np.stack(matrices)


def ngrams(texts: Sequence[str]) -> NDArray[np.float32]:
    """(n, buckets) counts of the texts' n-grams; runs of white space and both ends are a space."""
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
