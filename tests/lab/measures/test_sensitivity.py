import itertools

import numpy as np
import pandas as pd
import pytest

from lab.base.errors import UserError
from lab.measures.sensitivity import flips_needed, sensitivity

TAUS = (0.1, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5)
WINDOWS = (2, 5, 8)


def sweep() -> pd.DataFrame:
    """Rows as a sweep leaves them: the default's cell is there once per group."""
    cells = [("guard.tau_FR", tau, 5) for tau in TAUS] + [("guard.W", 0.3, W) for W in WINDOWS]
    rows = []
    for (group, tau, W), arm, r in itertools.product(cells, ("ttrl", "guard"), range(3)):
        score = 50 + r + (10 * tau + W if arm == "guard" else 0)
        row = {"group": group, "guard.tau_FR": tau, "guard.W": W, "arm": arm, "replicate": r}
        rows.append(row | {"status": "done", "pass_final": score, "L/D": np.nan})
    rows.append(rows[-1] | {"replicate": 9, "status": "failed", "pass_final": np.nan})
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("tau", "W", "flips"),
    [(0.19, 5, 1), (0.2, 5, 2), (0.3, 5, 2), (0.39, 5, 2), (0.4, 5, 3), (0.3, 2, 1), (1.0, 5, 6)],
)
def test_flips_needed(tau, W, flips):
    assert flips_needed(tau, W) == flips


def test_one_setting_at_a_time_around_the_defaults():
    table = sensitivity(sweep(), ["pass_final"]).set_index(["setting", "arm", "value"])
    assert set(table.index.get_level_values("setting")) == {"guard.tau_FR", "guard.W"}
    assert table.loc[("guard.tau_FR", "guard", 0.1), "mean"] == pytest.approx(51 + 1 + 5)
    assert table.loc[("guard.W", "guard", 8), "mean"] == pytest.approx(51 + 3 + 8)
    assert (table["n"] == 3).all()
    assert table["sd"].to_numpy() == pytest.approx(1.0)
    defaults = table[table["default"]].index
    assert set(defaults.get_level_values("value")) == {0.3, 5}


def test_values_of_tau_that_are_one_algorithm_share_a_plateau():
    table = sensitivity(sweep(), ["pass_final"])
    own = table[(table["setting"] == "guard.tau_FR") & (table["arm"] == "guard")]
    groups = own.groupby("plateau")["value"].apply(list)
    assert list(groups) == [[0.1], [0.2, 0.25, 0.3, 0.35], [0.4, 0.5]]
    windows = table[(table["setting"] == "guard.W") & (table["arm"] == "guard")]
    assert windows["plateau"].is_unique


def test_bad_tables_are_named():
    with pytest.raises(UserError, match="missing columns L/D"):
        sensitivity(sweep().drop(columns="L/D"))
    with pytest.raises(
        UserError, match=r"none of guard\.tau_FR, guard\.W, guard\.beta_max was varied"
    ):
        sensitivity(sweep().query("`guard.tau_FR` == .3 and `guard.W` == 5"))
