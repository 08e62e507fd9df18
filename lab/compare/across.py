"""Several comparisons in one table: models and data sets beside each other."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from lab.compare.collection import Comparison
from lab.compare.tables import metrics


def metrics_across(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """Every metric of every replicate of every comparison.

    Args:
        comparisons: at least one.

    Returns:
        Indexed by (comparison, arm, replicate), where `comparison` is its title; the columns are
        those of `lab.compare.tables.metrics`.

    Raises:
        UserError: a problem has fewer visits than its fate needs.
    """
    parts = {comparison.title: metrics(comparison) for comparison in comparisons}
    return pd.concat(parts, names=["comparison", "arm", "replicate"])
