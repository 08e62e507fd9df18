"""Columns of numbers as short text in a page: typed arrays, deflated, in base64.

Layout, little-endian, before deflating: uint32 length of the head; the head, JSON: a list of
[name, type, length, n_values] with a type of `TYPES`; then each column's bytes in that order. A
column with n_values > 0 starts with so many float64 values, of which it holds the places. Lists of
texts have the type "json" and a length in bytes. `assets/lives.js` reads the same layout.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

TYPES = {"u1": np.dtype("<u1"), "u2": np.dtype("<u2"), "i4": np.dtype("<i4"), "f4": np.dtype("<f4")}
"""Name of a type in the head to its bytes."""
_VALUES = np.dtype("<f8")
_TEXTS = "json"
_MOST_VALUES = 1 << 16

Array = NDArray[np.generic]


def pack(columns: Mapping[str, Array | list[Any]]) -> str:
    """Numbers and texts as one text.

    Floats are shares of few votes, so they are stored as places in a list of their values, to the
    last bit; with more than 65536 different values they are rounded to 32 bits.

    Args:
        columns: name to (rows,) integers, flags or floats, or a list of texts or of mappings of
            texts; the lengths may differ.

    Raises:
        ValueError: an integer column does not fit into 32 bits.
    """
    head, body = [], []
    for name, column in columns.items():
        if isinstance(column, list):
            body.append(json.dumps(column, separators=(",", ":")).encode())
            head.append([name, _TEXTS, len(body[-1]), 0])
            continue
        kind, values, codes = _coded(name, column)
        head.append([name, kind, len(codes), len(values)])
        body += [values.astype(_VALUES).tobytes(), codes.astype(TYPES[kind]).tobytes()]
    described = json.dumps(head, separators=(",", ":")).encode()
    whole = b"".join([np.uint32(len(described)).astype("<u4").tobytes(), described, *body])
    return base64.b64encode(zlib.compress(whole)).decode("ascii")


def unpack(text: str) -> dict[str, Any]:
    """Columns of a packed text; those of floats come back as float64 or float32 arrays."""
    whole = zlib.decompress(base64.b64decode(text))
    end = 4 + int(np.frombuffer(whole, "<u4", 1)[0])
    columns: dict[str, Any] = {}
    for name, kind, length, n_values in json.loads(whole[4:end]):
        if kind == _TEXTS:
            columns[name] = json.loads(whole[end : end + length])
            end += length
            continue
        values = np.frombuffer(whole, _VALUES, n_values, end)
        end += values.nbytes
        codes: NDArray[Any] = np.frombuffer(whole, TYPES[kind], length, end)
        end += codes.nbytes
        columns[name] = values[codes] if n_values else codes
    return columns


def _coded(name: str, column: Array) -> tuple[str, Array, Array]:
    """Type, values that the codes stand for (none where they are the numbers), and codes."""
    if column.dtype.kind != "f":
        return _integer_type(name, column), np.empty(0), column
    codes, found = pd.factorize(column, use_na_sentinel=False)
    if len(found) > _MOST_VALUES:
        return "f4", np.empty(0), column
    # In order, so that near values have near codes.
    order = np.argsort(found)
    rank = np.empty(len(found), np.int64)
    rank[order] = np.arange(len(found))
    return "u1" if len(found) <= 256 else "u2", np.asarray(found)[order], rank[codes]


def _integer_type(name: str, column: Array) -> str:
    if not len(column):
        return "u1"
    low, high = int(column.min()), int(column.max())
    for kind in ("u1", "u2", "i4"):
        limits = np.iinfo(TYPES[kind])
        if limits.min <= low and high <= limits.max:
            return kind
    raise ValueError(f"{name}: {low} to {high} does not fit into 32 bits")
