import numpy as np
import pandas as pd
import pytest

from lab.base.errors import UserError
from lab.measures.fate import migration

LOST, RIGHT = "Degraded", "Stable Always Right"
FATES = pd.DataFrame(
    {
        "replicate": [0, 0, 0, 1, 1, 1],
        "problem": [0, 1, 2, 0, 1, 2],
        "ila": [0.6, 0.8, 0.9, 0.6, 1.0, 0.3],
        "fla": [0.1, 0.9, 1.0, 0.2, 1.0, 0.3],
        "fate": [LOST, RIGHT, RIGHT, LOST, RIGHT, "Marginal Stable"],
    }
)


def test_migration_counts_every_problem_once():
    table = migration(FATES)
    assert table["n_problems"].sum() == 6
    assert table["share"].sum() == pytest.approx(100)
    # The two degraded ones end in different bins, .1 and .2.
    degraded = table[table["fate"] == "Degraded"]
    assert sorted(degraded["fla"]) == pytest.approx([0.1, 0.2])
    np.testing.assert_allclose(degraded["share"], 100 / 6)
    np.testing.assert_allclose(degraded["sd"], np.std([100 / 3, 0], ddof=1))


def test_a_bubble_stands_at_the_mean_of_its_problems():
    both = migration(FATES, n_bins=2)
    right = both[both["fate"] == "Stable Always Right"]
    assert len(right) == 1
    assert right["ila"].item() == pytest.approx(0.9)
    assert right["share"].item() == pytest.approx(50)
    assert right["n"].item() == 2


def test_an_accuracy_of_one_belongs_to_the_last_bin_and_bounds_are_exact():
    ends = FATES.assign(ila=[0.0, 1.0, 0.3, 0.1 + 0.2, 0.7, 0.7], fla=0.0, fate="Degraded")
    table = migration(ends)
    assert sorted(zip(table["ila"].round(6), table["n_problems"], strict=True)) == [
        (0.0, 1),
        (0.3, 2),
        (0.7, 2),
        (1.0, 1),
    ]


def test_missing_columns_are_named():
    with pytest.raises(UserError, match="missing columns fla"):
        migration(FATES.drop(columns="fla"))
