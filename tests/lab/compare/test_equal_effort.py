import numpy as np
import pandas as pd
import pytest

from lab.base.errors import UserError
from lab.compare.effort import beyond_effort


def _rows(*rows):
    names = ["arm", "step_size", "seed", "place", "update_norm", "pass_final"]
    return pd.DataFrame(rows, columns=names)


def test_the_baseline_is_read_off_between_its_step_sizes():
    rows = _rows(
        ("ttrl", 1.0, 0, 0, 1.0, 50.0),
        ("ttrl", 4.0, 0, 0, 4.0, 70.0),
        ("mine", 1.0, 0, 0, 2.0, 65.0),  # halfway in the logarithm: 60
    )
    np.testing.assert_allclose(beyond_effort(rows, "pass_final"), [0, 0, 5])


def test_seeds_are_paired_and_nothing_is_extrapolated():
    rows = _rows(
        ("ttrl", 1.0, 0, 0, 1.0, 50.0),
        ("ttrl", 4.0, 0, 0, 4.0, 70.0),
        ("ttrl", 1.0, 1, 0, 1.0, 10.0),
        ("ttrl", 4.0, 1, 0, 4.0, 30.0),
        ("mine", 1.0, 1, 0, 2.0, 65.0),
        ("mine", 1.0, 0, 0, 5.0, 65.0),
        ("mine", 1.0, 0, 0, 0.0, 65.0),
        ("mine", 1.0, 7, 0, 2.0, 65.0),
    )
    found = beyond_effort(rows, "pass_final")
    assert found[4] == pytest.approx(45)
    assert np.isnan(found[5:]).all()


def test_a_missing_column_is_named():
    rows = _rows(("ttrl", 1.0, 0, 0, 1.0, 50.0)).drop(columns="update_norm")
    with pytest.raises(UserError, match="missing columns update_norm"):
        beyond_effort(rows, "pass_final")
