from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest

from lab.base.arms import arm
from lab.base.errors import UserError
from lab.study import Job, Outcome, Study, check_arms, control, needs
from lab.trace.manifest import read_manifest


@dataclass(frozen=True)
class Settings:
    seed: int = 0
    step_factor: float = 1.0
    skip_rate: float = 0.0
    treatment: str = "own"


@dataclass
class World:
    """Runs that move by factor ** power, the guard a quarter of that, and skip half under it."""

    make_trace: Callable
    save: Callable
    folder: Path
    power: float = 1.0
    fails: Callable[[list[Job]], bool] = lambda _: False

    def __post_init__(self):
        self.made: list[list[Job]] = []

    def study(self, *arms, seeds=(0, 1), **options):
        given = {"close": 0.1, "max_tries": 3, **options}
        settings = {"config_of": lambda _: Settings(), "run_jobs": self.run}
        return Study(folder=self.folder, arms=arms, seeds=seeds, **settings, **given)

    def run(self, jobs, report):
        left = [job for job in jobs if not job.finished]
        self.made.append(left)
        if self.fails(left):
            return [Outcome(job, error="lost") for job in jobs]
        for job in left:
            guarded = job.arm == "guard"
            norm = (0.25 if guarded else 1.0) * job.config.step_factor**self.power
            facts = {"seeds": [job.config.seed], "config": asdict(job.config)}
            trace = self.make_trace(job.arm, [[[0.5, 0.5]] * 2], [[0.5, 0.5]], norm, **facts)
            trace.steps["n_skipped"] = 1 if guarded else round(2 * job.config.skip_rate)
            self.save(trace, job.folder)
        return [Outcome(job, 1.0) for job in jobs]


@pytest.fixture
def world(make_trace, save, tmp_path):
    return World(make_trace, save, tmp_path / "all")


def test_arms_run_before_those_that_need_them(world):
    done = world.study("replayed", "random_skip", "guard", "ttrl").run()
    assert not done.failed
    order = [sorted({job.arm for job in jobs}) for jobs in world.made]
    assert order == [["guard", "ttrl"], ["replayed"], ["random_skip"]]
    sources = [job.config.treatment for job in world.made[1]]
    assert [Path(source).name for source in sources] == ["seed-1", "seed-0"]
    (found,) = done.matches
    assert (found.number, found.achieved_ratio) == (0.5, 1.0)
    assert all(job.config.skip_rate == 0.5 for job in world.made[2])
    flat = replace(world.study("ttrl", seeds=(3,)), replicates=True)
    assert flat.job("ttrl", 3).folder == world.folder / "ttrl"


@pytest.mark.parametrize(
    ("power", "fails", "n_tries", "kept"),
    [(1.0, 9, 1, 0.25), (2.0, 9, 2, 0.5), (2.0, 1, 1, 0.25), (2.0, 0, 0, None), (-1.0, 9, 4, 1)],
)
def test_another_factor_is_tried_while_the_match_is_off(power, fails, n_tries, kept, world):
    def lost(jobs):
        tries = [made for made in world.made if made and made[0].arm == "matched"]
        return bool(jobs) and jobs[0].arm == "matched" and len(tries) > fails

    world.power, world.fails = power, lost
    done = world.study("matched", "ttrl", "guard").run()
    if kept is None:
        assert not done.matches and len(done.failed) == 2
        return
    (found,) = done.matches
    assert found.tries == n_tries and found.number == pytest.approx(kept)
    assert found.achieved_ratio == pytest.approx(4 * kept**power)
    for seed in (0, 1):
        run = read_manifest(world.folder / "matched" / f"seed-{seed}")
        assert run.config["step_factor"] == run.extra["step_factor"] == found.number
        noted = run.extra["achieved_ratio"], run.extra["matched_tries"]
        assert noted == (found.achieved_ratio, n_tries)
    assert not list(world.folder.glob(".*"))


def test_a_study_goes_on_and_further_seeds_get_the_same_factor(world):
    world.power = 2.0
    stops: list[bool] = []

    def second_try(jobs):
        if jobs and jobs[0].arm == "matched" and jobs[0].config.step_factor > 0.3 and not stops:
            stops.append(True)
            raise KeyboardInterrupt
        return False

    world.fails = second_try
    arms = ("ttrl", "guard", "matched")
    with pytest.raises(KeyboardInterrupt):
        world.study(*arms).run()
    world.made.clear()
    (found,) = world.study(*arms).run().matches
    assert found.tries == 2 and found.number == pytest.approx(0.5)
    assert [len(jobs) for jobs in world.made] == [0, 0, 0, 2]  # the first try is not run again
    world.made.clear()
    (again,) = world.study(*arms, seeds=(0, 1, 5)).run().matches
    assert again.number == found.number and again.tries == 2
    assert [[job.config.seed for job in jobs] for jobs in world.made] == [[5, 5], [], [5]]


def test_a_control_leaves_out_seeds_whose_partners_failed(world):
    study = world.study("ttrl", "guard", "matched")
    world.run(study.jobs(["ttrl", "guard"])[:3], lambda _: None)
    world.fails = lambda jobs: bool(jobs) and jobs[0].arm == "guard"
    done = study.run()
    errors = {outcome.job.name: outcome.error or "" for outcome in done.failed}
    assert "did not finish on this seed" in errors["matched, seed 1"]
    assert read_manifest(world.folder / "matched" / "seed-0").status == "finished"
    assert len(study.traces("matched")) == 1


def test_every_guarded_arm_has_its_controls():
    own = control("random_skip_memory_guard")
    assert (own.kind, own.target, own.unguarded) == ("random_skip", "memory_guard", "memory")
    assert (own.arm.name, own.arm.guard) == ("random_skip_memory_guard", arm("memory").guard)
    assert control("memory") is None and needs("memory") == ()
    assert needs("matched,W=3") == needs("random_skip,W=3") == ("ttrl", "guard,W=3")
    check_arms(("ttrl", "release", "matched_release"))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), "at least one"),
        (("ttrl", "ttrl"), "ttrl is there twice"),
        (("guard", "matched"), "matched needs ttrl and guard; add them"),
        (("ttrl", "guard", "matched_memory_guard"), "needs memory and memory_guard"),
        (("matched_frozen",), "frozen is no guard"),
        (("matched,treatment=permuted",), "guard,treatment=permuted is no guard"),
        (("replayed",), "replayed needs guard; add them"),
        (("nothing",), "unknown"),
        (("guard", "replayed"), "replayed needs two seeds, since each replays another one"),
    ],
)
def test_arms_that_cannot_be_run_on_one_seed(names, message, world):
    with pytest.raises(UserError, match=message):
        world.study(*names, seeds=(0,))
    assert not world.folder.exists()
