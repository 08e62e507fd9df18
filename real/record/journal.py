"""All that a run writes: the trace with its votes, texts, checkpoints, metrics for loggers."""

from __future__ import annotations

import hashlib
import html
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from lab.base.columns import Ints
from lab.base.errors import first_line
from lab.base.files import whole
from lab.trace.manifest import Manifest
from lab.trace.schema import Columns, Table
from lab.trace.trace import MemoryRun, Recorder, RunFolder
from real.answers import AnswerIds
from real.model.machine import in_phase
from real.record.checkpoint import Checkpoints, State
from real.record.terminal import ALARM, say

PROJECT = "ttrl-guard-lab"


class Logger(NamedTuple):
    """Destination of metrics besides the trace."""

    scalars: Callable[[int, Mapping[str, float]], object]
    """Called with a step and its numbers by name."""
    close: Callable[[], object]


def _tensorboard(folder: Path, manifest: Manifest, after: int | None) -> Logger:
    from torch.utils.tensorboard import SummaryWriter

    # Hide what a killed run logged after its checkpoint: those batches are run again.
    purge = None if after is None else after + 1
    writer = SummaryWriter(str(folder / "tensorboard"), purge_step=purge)
    if after is None:
        config = msgspec.json.format(msgspec.json.encode(manifest.config)).decode()
        writer.add_text("config", f"<pre>{html.escape(config)}</pre>", 0)

    def scalars(step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return Logger(scalars, writer.close)


def _wandb(folder: Path, manifest: Manifest, after: int | None) -> Logger:
    """A Weights & Biases run, kept in RUN/wandb until `wandb sync` sends it."""
    wandb: Any = importlib.import_module("wandb")
    name = f"{manifest.arm}-{folder.name}"  # the arms of a comparison start in one second
    identity = hashlib.sha256(f"{name} {manifest.started}".encode()).hexdigest()
    run = wandb.init(
        project=PROJECT,
        name=name,
        id=identity[:12],  # a run shares it with its resumption and with no other run
        config=manifest.config,
        dir=str(folder),
        mode=os.environ.get("WANDB_MODE", "offline"),
        resume="allow",
        settings=wandb.Settings(silent=True),
    )
    return Logger(lambda step, values: run.log(dict(values), step=step), run.finish)


LOGGERS = {"tensorboard": _tensorboard, "wandb": _wandb}
Loggers = Sequence[tuple[str, Any]]
"""Names and their loggers."""


class Visited(NamedTuple):
    """Votes of some problems, as the trace keeps them."""

    problems_P: Ints
    answers_PV: Ints
    """(P, V) answer ids, -1 unparseable."""
    columns: dict[str, Any]
    """Columns of the trace's visits, without step and epoch."""


_GROUPS: dict[Table, str] = {"steps": "train", "evals": "eval", "visits": "votes"}
"""Groups of the metrics of those tables that loggers are told of."""
_NOT_METRICS = {"replicate", "step", "epoch", "visit", "problem", "label", "route"}


class Journal(AbstractContextManager["Journal"]):
    """Writes trace, metrics and checkpoints."""

    def __init__(
        self, recorder: Recorder, loggers: Loggers = (), checkpoints: Checkpoints | None = None
    ) -> None:
        """Write to the recorder; a logger that fails is left out, and the run continues."""
        self.recorder, self.manifest = recorder, recorder.manifest
        self._folder = recorder.path if isinstance(recorder, RunFolder) else None
        self._loggers = list(loggers)
        self.checkpoints, self._overdue = checkpoints, False
        self._answer_ids: AnswerIds | None = None
        self.note = recorder.note
        self.show: Callable[[str], object] = lambda phase: None
        """Called with the name of a phase at its start, and with "" at its end."""

    def write(self, table: Table, columns: Columns) -> None:
        """Add rows to a table of the trace, and give loggers their means."""
        self.recorder.write(table, columns)
        if self._loggers and (group := _GROUPS.get(table)):
            step, values = int(np.max(np.asarray(columns["step"]))), metrics_of(group, columns)
            self._tell(lambda logger: logger.scalars(step, values))

    def keep_votes(self, answer_ids: AnswerIds) -> None:
        """Write votes and texts of answers with the visits from now on; texts known now are not."""
        self._answer_ids = answer_ids
        self._n_written_N = list(map(answer_ids.n_answers_of, range(len(answer_ids))))

    def write_visited(self, visited: Visited, position: Columns) -> None:
        """Add visits to the trace and, where they are kept, parsed votes and texts that are new."""
        self.write("visits", {**visited.columns, **position})
        if (ids := self._answer_ids) is None:
            return
        votes: list[tuple[int, ...]] = []
        answers: list[tuple[int, int, int]] = []
        problems = visited.problems_P.tolist()
        visits = np.broadcast_to(visited.columns["visit"], len(problems)).tolist()
        for visit, problem, answers_V in zip(visits, problems, visited.answers_PV, strict=True):
            counts = np.unique(answers_V[answers_V >= 0], return_counts=True)
            votes += [(visit, problem, *pair) for pair in zip(*counts, strict=True)]
            # Ids follow the order of first appearance, so those beyond the last written are new.
            new = range(self._n_written_N[problem], ids.n_answers_of(problem))
            answers += [(visit, problem, answer) for answer in new]
            self._n_written_N[problem] += len(new)
        shared, names = {"replicate": 0, **position}, ("visit", "problem", "answer", "count")
        columns = np.array(votes, np.int64).reshape(-1, 4).T
        self.write("votes", {**shared, **dict(zip(names, columns, strict=True))})
        if answers:
            columns = np.array(answers, np.int64).T
            texts = np.array([ids.text(problem, answer) for _, problem, answer in answers])
            shared |= {"text": texts, **dict(zip(names, columns, strict=False))}
            self.write("answers", shared)

    def write_json(self, name: str, values: Any) -> None:
        """Write plain values next to the trace, one a line where the name ends in .jsonl."""
        if self._folder is None:
            return
        target, encoder = self._folder / name, msgspec.json.Encoder()
        target.parent.mkdir(exist_ok=True)
        is_lines = target.suffix == ".jsonl"
        content = encoder.encode_lines(values) if is_lines else encoder.encode(values)
        with whole(target) as temporary:
            temporary.write_bytes(content if is_lines else msgspec.json.format(content))

    def note_faults(self, refused: int, faults: Mapping[str, int], step: int) -> None:
        """Note how often notices of `faults` apply to a batch; the first of a kind on stderr."""
        if not faults:
            return
        extra = self.manifest.extra
        known: dict[str, list[int]] = dict(extra.get("faults", {}))
        others = [line for line in extra.get("notices", []) if line.partition(": ")[0] not in known]
        for text, number in faults.items():
            before, first, _ = known.get(text, (0, step, step))
            known[text] = [before + number, first, step]
            if not before:
                say([f"{text}: {number} in batch {step}; later ones are counted in run.json"])
        lines = [
            f"{text}: {n} in batches {first} to {last}" for text, (n, first, last) in known.items()
        ]
        refused += extra.get("refused_steps", 0)
        self.recorder.note(refused_steps=refused, faults=known, notices=[*others, *lines])

    def notice(self, text: str) -> None:
        """Note an event of the run, and print it."""
        say([text])
        self.recorder.note(notices=[*self.manifest.extra.get("notices", []), text])

    def alarm(self, name: str, text: str) -> None:
        """Give notice of a fault of the training, once in a run."""
        line = f"{ALARM}{name}"
        if not any(known.startswith(line) for known in self.manifest.extra.get("notices", [])):
            self.notice(f"{line} {text}")

    def checkpoint(
        self, state: Callable[[], State], step: int, forced: bool = False, later: bool = False
    ) -> None:
        """Write a checkpoint, if one is due after this batch or `forced`, or put it off."""
        if self.checkpoints is None:
            return
        self._overdue = self._overdue or forced or self.checkpoints.due(step)
        if self._overdue and not later:
            self._overdue = False
            with self.phase("checkpoint"):
                self.checkpoints.save(state(), step)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Show the phase next to the progress bar, if there is one; errors name it as well."""
        self.show(name)
        try:
            with in_phase(name):
                yield
        finally:
            self.show("")

    def __exit__(self, *_: object) -> None:
        self._tell(lambda logger: logger.close())

    def _tell(self, call: Callable[[Any], None]) -> None:
        for entry in list(self._loggers):
            try:
                call(entry[1])
            except Exception as error:
                self._loggers.remove(entry)
                reason = first_line(error)
                print(f"log {entry[0]}: failed and is left out ({reason})", file=sys.stderr)


def metrics_of(group: str, columns: Columns) -> dict[str, float]:
    """Return means over rows, NaN left out, of all columns that measure something."""
    numbers = {n: np.asarray(c, float) for n, c in columns.items() if n not in _NOT_METRICS}
    known = {name: column[np.isfinite(column)] for name, column in numbers.items()}
    return {f"{group}/{n}": float(c.mean()) for n, c in known.items() if c.size}


class Unwritten(MemoryRun):
    """The recorder of ranks that write no rows: theirs are the first rank's."""

    def write(self, table: Table, columns: Columns) -> None:
        """Forget them."""
