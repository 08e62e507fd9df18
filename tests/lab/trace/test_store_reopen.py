import pandas as pd
import pytest

from lab.base.errors import UserError
from lab.trace.manifest import LOCK_NAME, Extent, locked, read_manifest
from lab.trace.trace import RunFolder

STEP = {"replicate": 0, "epoch": 1, "lr": 0.1, "update_norm": 1.0, "n_problems": 1, "n_skipped": 0}


def row(step):
    return {**STEP, "step": step}


@pytest.fixture
def folder(tmp_path, make_manifest):
    """Five steps in three parts, of which the first two parts hold steps 1 to 3; failed."""
    run = RunFolder.create(tmp_path / "run", make_manifest())
    with pytest.raises(OSError), run:
        for rows, parts in (((1,), 1), ((2, 3), 2)):
            for step in rows:
                run.write("steps", row(step))
            others = dict.fromkeys(("visits", "evals", "votes", "answers"), 0)
            assert run.parts() == others | {"steps": parts}
        run.write("steps", row(4))
        run.write("steps", row(5))
        raise OSError("gone")
    return tmp_path / "run"


def steps(folder):
    return pd.read_parquet(folder / "steps")["step"].tolist()


def test_later_rows_go_new_ones_follow_and_all_that_are_kept_are_noted(folder):
    assert steps(folder) == [1, 2, 3, 4, 5]
    assert read_manifest(folder).tables["steps"] == Extent(3, 5)
    (folder / "steps" / "part-00003.parquet.99.tmp").write_text("half a part")
    with RunFolder.reopen(folder, {"steps": 2}) as run:
        assert run.manifest.status == "running" and run.manifest.error is None
        assert steps(folder) == [1, 2, 3]
        assert read_manifest(folder).tables["steps"] == Extent(2, 3)
        run.write("steps", row(7))
        run.flush()
        run.write("steps", row(8))
    assert steps(folder) == [1, 2, 3, 7, 8]
    parts = sorted(path.name for path in (folder / "steps").iterdir())
    assert parts == [f"part-{n:05d}.parquet" for n in range(4)]
    assert read_manifest(folder).tables["steps"] == Extent(4, 5)
    assert read_manifest(folder).tables["evals"] == Extent(0, 0)


def test_all_rows_go_where_nothing_is_kept(folder):
    RunFolder.reopen(folder, {}).finish()
    assert not list((folder / "steps").iterdir())


def test_a_missing_part_is_named_and_nothing_is_deleted(folder):
    (folder / "steps" / "part-00000.parquet").unlink()
    with pytest.raises(UserError, match=r"steps/part-00000\.parquet is missing"):
        RunFolder.reopen(folder, {"steps": 2})
    assert len(list((folder / "steps").iterdir())) == 2


def test_a_folder_is_held_by_name_and_only_where_it_can_be(tmp_path):
    with locked(tmp_path):
        assert (tmp_path / LOCK_NAME).exists()
    with pytest.raises(UserError, match="nowhere"), locked(tmp_path / "nowhere"):
        pass
