"""The few array operations that the array API standard does not spell alike everywhere."""

from __future__ import annotations

import math
from typing import Any

from array_api_compat import array_namespace, device, is_numpy_array, is_torch_array

Array = Any
"""An array of NumPy, PyTorch or any library that follows the array API standard."""


_NAMESPACES: dict[type, Any] = {}


def namespace(array: Array) -> Any:
    """The library of an array; looked up once per type, for small batches feel every call."""
    kind = type(array)
    if kind not in _NAMESPACES:
        _NAMESPACES[kind] = array_namespace(array)
    return _NAMESPACES[kind]


def on_cpu(array: Array) -> bool:
    """True if the values can be looked at without waiting for another device."""
    return "cpu" in str(device(array)).lower()


def counter_dtype(xp: Any, largest: int) -> Any:
    """The narrowest of the common integer types that counts up to `largest`."""
    return xp.int16 if largest < 2**15 else xp.int64


def ordered_sum(values: Array) -> Array:
    """Sum over the last axis from left to right.

    Libraries add up an axis in different orders; one order gives all of them the same last bit.
    """
    total = values[..., 0]
    for column in range(1, values.shape[-1]):
        total = total + values[..., column]
    return total


def divide(values: Array, by: float) -> Array:
    """True division by a number.

    On CUDA, PyTorch turns division by a scalar into a product with its reciprocal, which can end
    on the other side of a threshold (3 * (1 / 5) > 0.6); division by an array it does not touch.
    """
    return values / namespace(values).full_like(values, by)


def square_root(values: Array) -> Array:
    """Square roots, rounded correctly.

    PyTorch's are off by one bit for about one number in 150. One Newton step whose residual is
    computed without error (Dekker's product) gives every library the same last bit.
    """
    xp = namespace(values)
    root = xp.sqrt(values)
    split = 2.0**27 + 1 if values.dtype == xp.float64 else 2.0**12 + 1
    high = root * split
    high = high - (high - root)
    low = root - high
    square = root * root
    error = ((high * high - square) + 2 * high * low) + low * low
    residual = (values - square) - error
    step = residual / (2 * xp.where(root > 0, root, xp.ones_like(root)))
    # The true root lies below the Newton step by a second-order term, which decides a tie.
    return root + (step - xp.abs(step) * xp.finfo(values.dtype).eps)


def floor_share(share: float, n: int) -> int:
    """`floor(share * n)` for a share written in decimals: .29 of 100 is 29, not 28."""
    return int(share * n + 1e-9)


def widen(array: Array, width: int) -> Array:
    """Pad the last axis with zeros up to `width`; longer ones are returned as they are."""
    missing = width - array.shape[-1]
    if missing <= 0:
        return array
    xp = namespace(array)
    shape = (*array.shape[:-1], missing)
    return xp.concat([array, xp.zeros(shape, dtype=array.dtype, device=device(array))], axis=-1)


def sum_by_id(ids: Array, n: int, weights: Array) -> Array:
    """Sum the weights of the entries with each id, in their order.

    Args:
        ids: (..., M) integers below n; negative ones are left out.
        weights: (..., M) floats.

    Returns:
        (..., n) floats of the dtype of `weights`.
    """
    xp = namespace(weights)
    if is_numpy_array(weights):
        rows = xp.arange(math.prod(ids.shape[:-1])).reshape((*ids.shape[:-1], 1))
        slots = rows * (n + 1) + xp.where(ids < 0, n, ids)
        sums = xp.bincount(slots.reshape(-1), weights.reshape(-1), rows.size * (n + 1))
        return xp.astype(sums.reshape((*ids.shape[:-1], n + 1))[..., :n], weights.dtype)
    places = xp.arange(n, dtype=ids.dtype, device=device(ids))
    hits = xp.astype(ids[..., None] == places, weights.dtype)
    return xp.sum(hits * weights[..., None], axis=-2)


def gather(array: Array, index: Array, axis: int) -> Array:
    """Entries at `index` (..., P) along `axis`, with the axes behind it kept whole."""
    if _indexes_rows(array, index):
        return array[index]
    xp = namespace(array)
    return xp.take_along_axis(array, _reach(xp, index, array), axis=axis)


def scatter(array: Array, index: Array, rows: Array, axis: int) -> Array:
    """Write `rows` at `index` along `axis`, in place where the library can."""
    if _indexes_rows(array, index):
        array[index] = rows
        return array
    xp = namespace(array)
    reach = _reach(xp, index, array)
    if is_numpy_array(array):
        xp.put_along_axis(array, reach, rows, axis=axis)
        return array
    if is_torch_array(array):
        return array.scatter_(axis, reach, rows)
    return _scatter_copy(xp, array, index, rows, axis)


def _indexes_rows(array: Array, index: Array) -> bool:
    """Return whether plain indexing suffices: without leading axes, in libraries that have it."""
    return index.ndim == 1 and (is_numpy_array(array) or is_torch_array(array))


def _scatter_copy(xp: Any, array: Array, index: Array, rows: Array, axis: int) -> Array:
    places = xp.arange(array.shape[axis], dtype=index.dtype, device=device(array))
    hits_NP = index[..., None, :] == places[:, None]
    source = xp.argmax(xp.astype(hits_NP, index.dtype), axis=-1)
    written = xp.any(hits_NP, axis=-1)
    new = gather(rows, source, axis)
    if array.ndim > index.ndim:
        written = written[..., None]
    return xp.where(written, new, array)


def _reach(xp: Any, index: Array, array: Array) -> Array:
    """Give the index the last axis of the array where it has one more."""
    if array.ndim == index.ndim:
        return index
    return xp.broadcast_to(index[..., None], (*index.shape, array.shape[-1]))
