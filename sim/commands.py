"""The commands of `guard-sim`. They import the simulator when they run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from lab.arm_settings import arm_of
from lab.base.arms import DEMO_ARMS, GUARD, for_cell, with_rule
from lab.base.errors import UserError, one_line, require_packages
from lab.base.files import check_new_folder, whole
from lab.cli import arms_of
from lab.trace.manifest import check_new
from sim.settings.config import SEARCH_ARMS, SEARCH_LRS, Classical, Objective, Preset, SimConfig
from sim.settings.resolve import File, check_port, settings_of


@dataclass(kw_only=True)
class SettingsCommand:
    """Options of the commands that take the simulator's settings."""

    profile: str | None = None
    """The guard, in a study that of the arm `guard`: paper (default), release, off, recommended,
    frs, mps or rcsu."""
    config: Path | None = None
    """TOML file with settings; options on the command line win."""
    settings: SimConfig = field(default_factory=SimConfig)

    @classmethod
    def defaults(cls, given: Mapping[str, Any], file: File = None) -> dict[str, Any]:
        """Settings of --config, --population, --profile and --arm for what is not given."""
        usual = cls.__dataclass_fields__["settings"].default_factory()
        return {"settings": settings_of(given, file, replicates=usual.replicates)}


@dataclass(kw_only=True)
class StudyCommand(SettingsCommand):
    """Options of the commands that make many runs, which the same command goes on with."""

    workers: int = 1
    """Processes on this machine."""
    quiet: bool = False
    """No progress bar."""
    settings: SimConfig = field(default_factory=lambda: SimConfig(replicates=20))


@dataclass(kw_only=True)
class Simulate(SettingsCommand):
    """Simulate one arm and leave its run folder.

    Examples:
        guard-sim run --out runs/guard
        guard-sim run --arm ttrl --population llama-amc --replicates 20 --out runs/amc
        guard-sim run --guard.W 3 --step 0.1 --seed 1 --out runs/window
    """

    out: Path
    """New folder for the run."""
    arm: str | None = None
    """A named arm in place of a profile: ttrl, guard, frozen, memory, memory_guard, truth, a rule
    by name (scope), or a rule with one of them (scope+guard); --rule scope --arm guard is the
    same."""
    quiet: bool = False
    """No progress bar."""

    def run(self) -> None:
        """Simulate, then print a summary."""
        # What can be refused is refused before the imports, which take a second.
        check_new(self.out)
        config = self.settings
        named = None if self.arm is None else for_cell(self.arm, config.cell)
        arm = arm_of(config, None if named is None else with_rule(named, config.rule))
        from sim.engine.run import simulate
        from sim.studies.compare import print_short, print_summary, rows_of, with_votes
        from sim.world.measured import Trust

        print_short(config.epochs)
        trace = simulate(config, self.out, progress=not self.quiet, arm=arm)
        print_summary(with_votes(rows_of({trace.run.arm: trace}, config), config))
        if (trust := trace.run.extra.get("trust")) is not None:
            print(Trust(**trust).line())
        print(self.out)


@dataclass(kw_only=True)
class Compare(StudyCommand):
    """Simulate several arms with paired seeds, each into its own folder below --out.

    The same command goes on with a comparison that was interrupted.

    Examples:
        guard-sim compare --out runs/sim
        guard-sim compare --own-best --workers 2 --out runs/best
        guard-sim compare --preset paper --out runs/paper
    """

    SHORT: ClassVar[tuple[str, ...]] = (
        *("policy", "response", "lr", "population", "n_problems", "epochs", "n_votes"),
        *("n_samples", "step", "replicates", "seed"),
    )

    out: Path
    """Folder; every arm gets a folder of its name in it."""
    arms: tuple[str, ...] = DEMO_ARMS
    """Arms: ttrl, guard, frozen, memory, memory_guard, truth; the profile release, the ablations
    frs, mps, rcsu; a rule by name (scope) or with one of these (scope+guard); the controls matched
    (same update norm) and random_skip (same share of skipped visits) of the guard, or of another
    arm as in matched_release or matched_scope+guard; permuted and replayed, the guard's decisions
    on other problems or of another replicate; or an arm with settings of its own, such as
    'guard: flip_rate=instant, theta_MR=.5'. With --rule scope, guard is scope+guard."""
    preset: Literal["paper"] | None = None
    """paper: all cells of the paper, beside its numbers."""
    own_best: bool = False
    """Also run all arms at seven step sizes from .001 to 1 and compare each at its own best."""
    steps: tuple[float, ...] = ()
    """Also run all arms at these step sizes, instead of the seven of `own_best`."""
    null: bool = False
    """Also run all arms with independent problems: the null model."""

    @classmethod
    def defaults(cls, given: Mapping[str, Any], file: File = None) -> dict[str, Any]:
        """Settings of --config, --population and --profile for what is not given."""
        fixed = {"arms", "own_best", "steps", "null", "rule", "population", "n_problems", "epochs"}
        if "preset" in given and (name := min(fixed & given.keys(), default="")):
            raise UserError(f"--{name.replace('_', '-')}: --preset has its own; give one of them")
        arms, file = arms_of(given.get("config"), DEMO_ARMS)
        return {**super().defaults(given, file), "arms": arms}

    def run(self) -> None:
        """Simulate all arms, write every difference, then print a summary."""
        if self.preset is not None:
            from sim.studies.paper import run_paper

            words = run_paper(self.settings, self.out, self.workers, not self.quiet)
            print(*words, self.out, sep="\n")
            return
        import pandas as pd

        from lab.compare.collection import GRID, NULL
        from sim.studies.compare import compare, print_short, report, rows_of
        from sim.studies.sweep import STEPS, Sweep, run_sweep
        from sim.world.measured import Trust

        config = self.settings
        names = tuple(with_rule(for_cell(n, config.cell), config.rule) for n in self.arms)
        print_short(config.epochs)
        traces = compare(config, names, self.out, not self.quiet, self.workers)
        rows = rows_of(traces, config)
        trusts = {arm: trace.run.extra.get("trust") for arm, trace in traces.items()}
        words = [f"{arm}: {Trust(**trust).line()}" for arm, trust in trusts.items() if trust]
        steps = self.steps or (STEPS if self.own_best else ())
        if steps or self.null:
            traces.clear()
            policies = dict.fromkeys((config.policy, NULL) if self.null else (config.policy,))
            grid = {"policy": tuple(policies), "step": tuple(dict.fromkeys((config.step, *steps)))}
            sweep = Sweep(base=config, arms=names, groups=(grid,))
            more = run_sweep(sweep, self.out / GRID, self.workers, progress=not self.quiet)
            rows = pd.concat([rows, more], ignore_index=True)
            rows = rows.drop_duplicates(["policy", "step", "arm", "replicate"])
        report(rows, config, self.out)
        print(*words, self.out, sep="\n")


@dataclass(kw_only=True)
class SweepCommand(StudyCommand):
    """Run arms over many settings with paired seeds; the same command continues a sweep.

    Examples:
        guard-sim sweep --vary guard.W=2,3,5 --out runs/window
        guard-sim sweep --vary step=loguniform:.01:.3:5 --arms ttrl guard --out runs/steps
        guard-sim sweep --preset sensitivity --workers 2 --out runs/sensitivity
    """

    SHORT: ClassVar[tuple[str, ...]] = (
        *("policy", "response", "lr", "population", "step", "replicates", "seed"),
    )

    out: Path
    """Folder of the sweep: new, empty, or with an unfinished sweep of the same settings."""
    vary: tuple[str, ...] = ()
    """Axes: `guard.W=2,3,5`, or `step=loguniform:.01:.1:5` and `step=uniform:.01:.1:5` (5 values).
    Several axes make a grid. Any setting below can be varied."""
    preset: Preset | None = None
    """A named sweep: the paper's sensitivities (24 settings, or one of its rows), or all label-free
    rules."""
    arms: tuple[str, ...] = ()
    """Arms, as in guard-sim compare; the preset's, or guard, if left out."""

    @classmethod
    def defaults(cls, given: Mapping[str, Any], file: File = None) -> dict[str, Any]:
        """Settings of --config, --preset, --population, --profile and --rule."""
        if (name := given.get("preset")) is None:
            return super().defaults(given, file)
        from sim.studies.sweep import preset_settings

        return {"settings": settings_of(given, file, **preset_settings(name))}

    def run(self) -> int:
        """Run the sweep, then print a summary; the exit code is 1 where every run failed."""
        from lab.compare.tables import with_vote
        from sim.studies.compare import print_failures, print_rules, print_summary
        from sim.studies.jobs import parse_all
        from sim.studies.sweep import Sweep, preset, run_sweep

        arms = tuple(with_rule(name, self.settings.rule) for name in self.arms)
        if self.preset is None:
            arms = arms or (with_rule(GUARD, self.settings.rule),)
            sweep = Sweep(base=self.settings, arms=arms, groups=(parse_all(self.vary),))
        elif self.vary:
            raise UserError("--preset: has its own axes; give it or --vary")
        else:
            sweep = preset(self.preset, self.settings, arms)
        rows = run_sweep(sweep, self.out, self.workers, progress=not self.quiet)
        if self.preset == "rules":
            print_rules(rows, sweep.names)
        else:
            print_summary(with_vote(rows, [*sweep.names, "replicate", "status"]), sweep.names)
        print_failures(rows)
        print(self.out)
        return int((rows["status"] == "failed").all())


@dataclass(kw_only=True)
class SearchCommand(StudyCommand):
    """Search arms and settings by successive halving; the same command continues a search.

    Every candidate, an arm with settings, is run over a grid of learning rates. Each round adds
    paired replicates and keeps the better half; the plain arms stay. With the policy `measured`
    replicate numbers are those of --seed and --first-replicate.

    Examples:
        guard-sim search --policy measured --response response.npz --lr 3e-4 --out runs/search
        guard-sim search --config measured.toml --arms ttrl memory --budget 300 --out runs/small
        guard-sim search --config measured.toml --vary guard.W=3,5,8 kl_coef=0,.05 --out runs/w
        guard-sim search --config measured.toml --sets set-2.npz set-3.npz --out runs/sets
    """

    SHORT: ClassVar[tuple[str, ...]] = ("policy", "response", "lr", "epochs", "replicates", "seed")

    out: Path
    """Folder of the search: new, empty, or with an unfinished search of the same settings."""
    arms: tuple[str, ...] = SEARCH_ARMS
    """Arms that settings are combined with; the first is the reference of the table."""
    vary: tuple[str, ...] = ()
    """Settings to combine, as `kl_coef=0,.05,.2`; if left out KL penalty, scale of negative
    advantages, hysteresis and discount."""
    lrs: tuple[float, ...] = SEARCH_LRS
    """Learning rates that a candidate is judged over."""
    sets: tuple[str, ...] = ()
    """Further response files that it is judged over, of other problem sets or start models."""
    objective: Objective = "mean"
    """Mean over the learning rates of the final pass@1, or its minimum."""
    budget: int = 1000
    """Most runs: one candidate at one learning rate on one set in one replicate each."""
    settings: SimConfig = field(default_factory=lambda: SimConfig(replicates=5))

    def run(self) -> None:
        """Run the search, write search.csv and print its best rows."""
        if self.settings.policy != "measured":
            raise UserError(
                "search: candidates are judged over learning rates; needs the policy "
                "measured, with --response and --lr"
            )
        from sim.studies.jobs import parse_all
        from sim.studies.search import AXES, Search, report, run_search

        names = ("arms", "lrs", "sets", "objective", "budget")
        options: dict[str, Any] = {name: getattr(self, name) for name in names}
        options["arms"] = tuple(with_rule(name, self.settings.rule) for name in self.arms)
        search = Search(base=self.settings, axes=parse_all(self.vary) or AXES, **options)
        rows = run_search(search, self.out, self.workers, progress=not self.quiet)
        report(search, rows, self.out)


@dataclass(kw_only=True)
class Agree:
    """Simulate real runs from a response file, with their settings, and compare both.

    Every cell, one arm at one learning rate, is compared in final pass@1, in the curves of pass@1,
    match rate and flip rate, in fates, problem by problem, and in the difference to TTRL. Beside
    the errors stand those of one half of the real seeds for the other half, of copying TTRL, and of
    classical policies whose step size is calibrated on the real TTRL runs. What cannot be compared
    is left out and named below the tables.

    Examples:
        guard-train measure --growth runs/pilot --out response.npz
        guard-sim agree --real runs/arms --response response.npz
        guard-sim agree --real runs/arms --response response.npz --out runs/agreement
    """

    real: tuple[Path, ...]
    """Run folders of the trainer, or folders that hold some at any depth."""
    response: Path
    """Response file of `guard-train measure`, of the same model and problems."""
    out: Path | None = None
    """New folder for the simulated runs, which guard-report draws over the real ones, and for
    agreement.csv; without it the tables are only printed."""
    replicates: int = 16
    """Simulated runs per cell."""
    growth: float | None = None
    """As in `guard-sim run`: the response file's own if left out, 0 for the linear model."""
    classical: tuple[Classical, ...] = get_args(Classical)
    """Classical policies to compare with."""
    seed: int = 0
    """Seed of the simulated runs."""
    quiet: bool = False
    """No progress bar."""

    def run(self) -> None:
        """Simulate, compare and print the tables."""
        if self.replicates < 1:
            raise UserError(f"replicates = {self.replicates}: must be at least 1")
        if self.out is not None:
            check_new_folder(self.out)
        from lab.base.columns import groups
        from lab.compare.agreement import cell_table, mean_table, ranking_table
        from lab.compare.collection import collect
        from sim.settings.populations import response_at
        from sim.studies.agree import Prediction, agree, left_out

        options: dict[str, Any] = {n: getattr(self, n) for n in ("growth", "replicates", "seed")}
        prediction = Prediction(response_at(str(self.response)), self.response, **options)
        collection = collect(self.real)
        real = [c for c in collection.comparisons if c.world == "real"]
        if not real:
            raise UserError(f"real: no run of the trainer in {', '.join(map(str, self.real))}")
        table = agree(real, prediction, self.out, self.classical, not self.quiet)
        for (task,), cells in groups(table, ["task"]):
            print("\n".join([str(task), *cell_table(cells).lines(), ""]))
        for text in (mean_table(table), ranking_table(table)):
            print("\n".join([*text.lines(), ""]))
        skipped = (one_line(run.reason) for run in collection.skipped)
        for line in (*left_out(real, self.classical), *skipped):
            print(f"left out: {line}")
        if self.out is not None:
            with whole(self.out / "agreement.csv") as file:
                table.to_csv(file, index=False)
            print(self.out / "agreement.csv")


@dataclass(kw_only=True)
class Calibrate:
    """Fit the paper's TTRL fate rows, freeze, predict its guard rows and compare with baselines.

    Examples:
        guard-sim calibrate --quick --out runs/quick
        guard-sim calibrate --rows llama-math500 --mechanisms attractor --out runs/llama
        guard-sim calibrate --out runs/calibration
    """

    out: Path
    """New or empty folder for the tables."""
    rows: tuple[str, ...] = ()
    """Rows of the paper such as llama-math500; all six if left out."""
    mechanisms: tuple[str, ...] = ()
    """independent, attractor, spread and features; all if left out."""
    readings: tuple[str, ...] = ()
    """Readings of label accuracy, share of votes or majority is right; both if left out."""
    replicates: int = 16
    """Runs per row and arm of the prediction."""
    fits: int = 2
    """Fits per mechanism and reading, each with seeds of its own."""
    seed: int = 0
    """Seed of fits and predictions."""
    quick: bool = False
    """By default one fit, a coarse one, and four runs per prediction, to see that it works."""
    quiet: bool = False
    """No progress bar."""

    @classmethod
    def defaults(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Numbers of a quick calibration, where they are not given."""
        return {"replicates": 4, "fits": 1} if given.get("quick") else {}

    def run(self) -> None:
        """Calibrate, then print the tables."""
        from sim.studies import calibrate as study

        readings = study.chosen("readings", self.readings, study.READINGS)
        rows = study.chosen("rows", self.rows, study.ROWS)
        mechanisms = study.chosen("mechanisms", self.mechanisms, study.MECHANISMS)
        calibration = study.Calibration(
            rows=[study.ROWS[name] for name in rows],
            mechanisms=[study.MECHANISMS[name] for name in mechanisms],
            readings=[reading for reading in study.READINGS if reading in readings],
            budget=study.QUICK if self.quick else study.FitBudget(),
            replicates=self.replicates,
            fits=self.fits,
            seed=self.seed,
        )
        print(study.run_calibration(calibration, self.out, progress=not self.quiet))
        print(self.out)


@dataclass(frozen=True)
class Theory:
    """Two-answer theory: lock-in, window and flips, exact and drawn, with 95 % intervals.

    Examples:
        guard-sim theory
        guard-sim theory --p0 0.55 --step 0.1 0.3 --n-votes 16 --n-samples 8
        guard-sim theory --chart
        guard-sim theory --response response.npz --lr 1e-4 3e-4
    """

    p0: tuple[float, ...] = (0.52, 0.55, 0.6)
    """Chances of the correct answer before training."""
    step: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0)
    """Logit steps per unit of standardised advantage."""
    n_votes: int = 64
    """V, responses per visit."""
    n_samples: int = 32
    """K, the first of them, which are trained on."""
    runs: int = 20_000
    """Problems drawn per cell."""
    max_visits: int = 2000
    """The most visits of a drawn problem."""
    seed: int = 0
    """Seed of the draws."""
    chart: bool = False
    """Print the regime chart over p0 and step * sqrt(V) instead; exact values only."""
    response: Path | None = None
    """Print instead the step of a measured model at the learning rates `lr`."""
    lr: tuple[float, ...] = ()
    """Learning rates, with `response`."""

    @classmethod
    def defaults(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Refuse options that a chart or a response file would leave unread."""
        table = {"p0", "step", "runs", "max_visits"}
        for name, more in (("chart", {"seed"}), ("response", {"chart", "n_votes", "n_samples"})):
            if given.get(name) and (unread := min(given.keys() & (table | more), default="")):
                told = f"--{unread.replace('_', '-')}: is not read with --{name}"
                raise UserError(f"{told}; leave one of both out")
        return {}

    def run(self) -> None:
        """Print the table."""
        if (self.response is None) != (not self.lr):
            raise UserError("--response, --lr: one needs the other")
        from sim.theory import tables

        if self.response is not None:
            for lr in self.lr:
                given = {"policy": "measured", "response": str(self.response), "lr": lr}
                print(tables.step_text(settings_of(given, replicates=1, seed=self.seed)))
            print(tables.MEMORY_WINS)
        elif self.chart:
            print(tables.chart_text(self.n_votes, self.n_samples))
        else:
            draws = {"n_runs": self.runs, "seed": self.seed, "max_visits": self.max_visits}
            table = tables.drawn_table(self.p0, self.step, self.n_votes, self.n_samples, **draws)
            print(tables.HEADING.format(self.n_votes, self.n_samples, self.runs))
            print(tables.as_text(table))


@dataclass(kw_only=True)
class Explore(SettingsCommand):
    """Serve a page whose sliders rerun the simulator, until Ctrl-C.

    Examples:
        guard-sim explore
        guard-sim explore --population llama-amc --replicates 16
        guard-sim explore --port 8060
    """

    port: int = 8050
    """Port on 127.0.0.1."""
    settings: SimConfig = field(default_factory=lambda: SimConfig(replicates=8))

    def run(self) -> None:
        """Serve the page."""
        require_packages("explore", "dash")
        check_port(self.port)
        from sim.explore import serve

        serve(self.settings, self.port)


COMMANDS = {
    "run": Simulate,
    "compare": Compare,
    "sweep": SweepCommand,
    "search": SearchCommand,
    "agree": Agree,
    "calibrate": Calibrate,
    "theory": Theory,
    "explore": Explore,
}
ABOUT = """Simulate test-time reinforcement learning with and without a guard.

Examples:
    guard-sim run --out runs/guard
    guard-sim compare --arms ttrl guard memory --out runs/arms
    guard-sim sweep --vary guard.W=2,3,5 --out runs/window
"""
