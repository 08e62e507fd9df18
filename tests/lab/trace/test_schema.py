import numpy as np
import pandas as pd
import pytest

from lab.trace.schema import STEPS, check_values, checked

STEP = {"replicate": 0, "step": 1, "epoch": 1, "lr": 0.1, "update_norm": 0.2}
STEP |= {"n_problems": 8, "n_skipped": 0}


def test_scalars_stand_for_all_rows_and_dtypes_follow_the_schema():
    step = np.array([1, 2, 3], np.int32)
    wide = {"epoch": np.array([1, 1, 2]), "lr": np.float32(0.5)}
    rows = checked("steps", STEP | wide | {"step": step})
    assert rows["step"].tolist() == [1, 2, 3]
    assert [len(values) for values in rows.values()] == [3] * len(STEP)
    for column in STEPS:
        if column.name in rows:
            assert rows[column.name].dtype == column.dtype
    assert rows["lr"].tolist() == [0.5] * 3
    assert len(checked("steps", STEP)["step"]) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"surprise": 1.0}, "surprise: not in the schema"),
        ({"step": 1.5}, "step: float64, must be int32"),
        ({"n_skipped": True}, "n_skipped: bool, must be int32"),
        ({"replicate": 40_000}, "replicate: value outside int16"),
        ({"lr": np.zeros(2), "update_norm": np.zeros(3)}, r"different lengths \[2, 3\]"),
        ({"lr": np.zeros((2, 2))}, r"lr: shape \(2, 2\)"),
        ({"step": 0}, "the first batch is step 1"),
        ({"epoch": -1}, "cannot be negative"),
    ],
)
def test_wrong_rows_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        checked("steps", STEP | change)


def test_missing_columns_are_all_named():
    with pytest.raises(ValueError, match="missing columns lr, n_skipped"):
        checked("steps", {k: v for k, v in STEP.items() if k not in ("lr", "n_skipped")})


def test_visit_zero_is_step_zero_and_epoch_zero(make_visits):
    visits = make_visits(np.full((1, 1, 3), 0.5))
    assert checked("visits", visits)["visit"].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="must be 0 together"):
        checked("visits", visits | {"epoch": np.array([0, 0, 1])})


def test_an_update_may_be_faster_than_the_product_that_measured_the_gpu():
    check_values("steps", pd.DataFrame(checked("steps", STEP | {"share_of_peak": 1.2})))
    with pytest.raises(ValueError, match="truncated has a value"):
        check_values("steps", pd.DataFrame(checked("steps", STEP | {"truncated": 1.2})))
