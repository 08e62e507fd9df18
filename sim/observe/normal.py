"""Normal numbers by position, like the uniform ones of `sim.random`, at little more cost.

The quantile function of the standard normal law, linear between 1025 points. The outermost points
are set so that the outermost pieces keep their mean; the whole then has mean 0, a standard
deviation within 1e-3 of 1 and no number beyond +-3.65.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

_PIECES = 1024


def _quantiles() -> NDArray[np.float64]:
    law = NormalDist()
    inner = [law.inv_cdf(k / _PIECES) for k in range(1, _PIECES)]
    end = 2 * law.pdf(inner[-1]) * _PIECES - inner[-1]
    return np.array([-end, *inner, end])


_QUANTILES = _quantiles()
_WIDTHS = np.diff(_QUANTILES)


@njit(inline="always")
def quantile(u: Any) -> Any:
    """The standard normal number below which lies the share u in [0, 1) of the law."""
    place = u * _PIECES
    # Unsigned, since an index that could be negative costs a comparison.
    piece = np.uint64(place)
    return _QUANTILES[piece] + (place - float(piece)) * _WIDTHS[piece]
