"""`sim.world.random` on tensors: the same 64-bit words for the same coordinates.

PyTorch has no arithmetic on unsigned 64-bit words. Sums and products of int64 wrap around to the
same bits, and a shift to the right becomes the logical one by clearing the sign's copies.
"""

from __future__ import annotations

import torch
from torch import Tensor

_WORD = 1 << 64


def _signed(word: int) -> int:
    """The int64 of the same bits as the lowest 64 bits of a whole number."""
    word %= _WORD
    return word - _WORD if word >> 63 else word


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)
_ULP = 2.0**-53


def _shifted(word: Tensor, by: int) -> Tensor:
    return (word >> by).bitwise_and_((1 << (64 - by)) - 1)


def _mix(word: Tensor) -> Tensor:
    """`sim.world.random.mix`, in place: the words of a batch's votes are too many to keep twice."""
    word.bitwise_xor_(_shifted(word, 30)).mul_(_MIX_1)
    word.bitwise_xor_(_shifted(word, 27)).mul_(_MIX_2)
    return word.bitwise_xor_(_shifted(word, 31))


def seed_key(seed: int, device: torch.device) -> Tensor:
    """The 0-d key of a run; fold in replicate, purpose, epoch and problem."""
    return _mix(torch.full((), _signed(seed), dtype=torch.int64, device=device))


def offsets(coordinate: Tensor) -> Tensor:
    """What `fold` and `unit` add to a key for values of a coordinate."""
    return (coordinate + 1) * _GOLDEN


def fold(key: Tensor, coordinate: Tensor | int) -> Tensor:
    """The keys of the next coordinate's values, by broadcasting."""
    if isinstance(coordinate, int):
        return _mix(key + _signed((coordinate + 1) * _GOLDEN))
    return _mix(key + offsets(coordinate))


def unit(key: Tensor, offset: Tensor | int = _GOLDEN) -> Tensor:
    """Uniform numbers in [0, 1) with 53 bits, float64.

    Args:
        key: of all coordinates but the draw.
        offset: `offsets` of the draws, by broadcasting; that of draw 0 if left out.
    """
    return _shifted(_mix(key + offset), 11).to(torch.float64).mul_(_ULP)
