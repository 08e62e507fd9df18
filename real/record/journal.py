"""All that a run writes: the trace with its votes, texts, checkpoints, metrics for loggers."""

from __future__ import annotations

import hashlib
import html
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec
import numpy as np

from lab.base.columns import Ints
from lab.base.errors import first_line
from lab.base.files import whole
from lab.trace.manifest import Manifest
from lab.trace.schema import Columns, Table
from lab.trace.trace import MemoryRun, Recorder
from real.answers import AnswerIds
from real.model.machine import in_phase
from real.record.checkpoint import Checkpoints, State
from real.record.terminal import ALARM, say

PROJECT = "ttrl-guard-lab"


class _TensorBoard:
    def __init__(self, folder: Path, manifest: Manifest, after: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Hide what a killed run logged after its checkpoint: those batches are run again.
        purge = None if after is None else after + 1
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=purge)
        if after is None:
            config = msgspec.json.format(msgspec.json.encode(manifest.config)).decode()
            self._writer.add_text("config", f"<pre>{html.escape(config)}</pre>", 0)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    """A Weights & Biases run, kept in RUN/wandb until `wandb sync` sends it."""

    def __init__(self, folder: Path, manifest: Manifest, after: int | None) -> None:
        self._wandb: Any = importlib.import_module("wandb")
        name = f"{manifest.arm}-{folder.name}"  # the arms of a comparison start in one second
        identity = hashlib.sha256(f"{name} {manifest.started}".encode()).hexdigest()
        self._run = self._wandb.init(
            project=PROJECT,
            name=name,
            id=identity[:12],  # a run shares it with its resumption and with no other run
            config=manifest.config,
            dir=str(folder),
            mode=os.environ.get("WANDB_MODE", "offline"),
            resume="allow",
            settings=self._wandb.Settings(silent=True),
        )

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


LOGGERS = {"tensorboard": _TensorBoard, "wandb": _Wandb}

Rows = dict[str, Any]


class Visited(NamedTuple):
    """Votes of some problems, as the trace keeps them."""

    problems_P: Ints
    answers_PV: Ints
    """(P, V) answer ids, -1 unparseable."""
    columns: Rows
    """Columns of the trace's visits, without step and epoch."""


class VoteRows:
    """Counts the votes of every visit, and knows the answers whose texts were written before."""

    def __init__(self, answer_ids: AnswerIds) -> None:
        self._answer_ids = answer_ids
        self._n_written_N = np.array(
            [answer_ids.n_answers_of(p) for p in range(len(answer_ids))], np.int64
        )

    def count(self, problems_P: Ints, answers_PV: Ints, visit: int | Ints) -> tuple[Rows, Rows]:
        """Return columns of the trace's votes and answers for one visit, without step and epoch.

        Problems come in the batch's order, ids ascending; answers are those of which no text was
        written yet. `answers_PV` are (P, V) ids, -1 unparseable, which gets no row; `visit` is the
        visit's number, (P,) where it differs between the problems.
        """
        width = 1 + int(answers_PV.max(initial=0))
        key_PV = np.arange(len(problems_P))[:, None] * width + answers_PV
        voted, count = np.unique(key_PV[answers_PV >= 0], return_counts=True)
        row, answer = np.divmod(voted, width)
        visit_P = np.broadcast_to(visit, len(problems_P))
        votes = {"problem": problems_P[row], "answer": answer, "count": count}
        # Ids follow the order of first appearance, so those beyond the last written one are new.
        new_answers = [
            (new, problem, answer)
            for new, problem in enumerate(problems_P.tolist())
            for answer in range(self._n_written_N[problem], self._answer_ids.n_answers_of(problem))
        ]
        new, problem, answer = np.array(new_answers, np.int64).reshape(-1, 3).T
        np.maximum.at(self._n_written_N, problem, answer + 1)
        texts = list(map(self._answer_ids.text, problem.tolist(), answer.tolist()))
        answers = {"problem": problem, "answer": answer, "text": np.array(texts, np.str_)}
        return (
            {"replicate": 0, "visit": visit_P[row], **votes},
            {"replicate": 0, "visit": visit_P[new], **answers},
        )


COMPLETIONS = "completions"
_GROUPS: dict[Table, str] = {"steps": "train", "evals": "eval", "visits": "votes"}
"""Groups of the metrics of those tables that loggers are told of."""
_NOT_METRICS = {"replicate", "step", "epoch", "visit", "problem", "label", "route"}


class Journal:
    """Takes in what the loop has to tell, and passes it on to whoever wants it."""

    def __init__(
        self,
        recorder: Recorder,
        folder: Path | None = None,
        loggers: Sequence[tuple[str, Any]] = (),
        checkpoints: Checkpoints | None = None,
    ) -> None:
        """Write to the recorder; a logger that fails is left out, and the run continues."""
        self.recorder, self.manifest = recorder, recorder.manifest
        self._folder, self._loggers = folder, list(loggers)
        self._checkpoints, self._overdue = checkpoints, False
        self.keeps_checkpoints = checkpoints is not None
        self.show: Callable[[str], object] = lambda phase: None
        """Called with the name of a phase at its start, and with "" at its end."""

    def write(self, table: Table, columns: Columns) -> None:
        """Add rows to a table of the trace, and give loggers their means."""
        self.recorder.write(table, columns)
        if self._loggers and (group := _GROUPS.get(table)):
            step, values = int(np.max(np.asarray(columns["step"]))), metrics_of(group, columns)
            self._tell(lambda logger: logger.scalars(step, values))

    def write_visited(
        self, visited: Visited, position: Columns, votes: VoteRows | None = None
    ) -> None:
        """Add a batch's visits to the trace, and its votes where `votes` counts them."""
        columns = {**visited.columns, **position}
        self.write("visits", columns)
        if votes is not None:
            counted, answers = votes.count(*visited[:2], visit=visited.columns["visit"])
            self.write("votes", {**counted, **position})
            if len(answers["text"]):
                self.write("answers", {**answers, **position})

    def write_completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write down responses of one evaluation, one JSON object a line."""
        if self._folder is None or not rows:
            return
        target = self._folder / COMPLETIONS / f"step-{step:06d}.jsonl"
        target.parent.mkdir(exist_ok=True)
        with whole(target) as temporary:
            temporary.write_bytes(msgspec.json.Encoder().encode_lines(rows))

    def write_json(self, name: str, values: Any) -> None:
        """Write a file of plain values next to the trace."""
        if self._folder is not None:
            with whole(self._folder / name) as temporary:
                temporary.write_bytes(msgspec.json.format(msgspec.json.encode(values)))

    def note_faults(self, refused: int, faults: Mapping[str, int], step: int) -> None:
        """Note how often notices of `faults` apply to a batch; the first of a kind on stderr."""
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

    def note(self, progress: float | None = None, **extra: Any) -> None:
        """Note how far the run is, and facts for the manifest's `extra`."""
        self.recorder.note(progress, **extra)

    def checkpoint(
        self, state: Callable[[], State], step: int, asked: bool = False, later: bool = False
    ) -> None:
        """Write a checkpoint, if one is due after this batch or `asked` for, or put it off."""
        if self._checkpoints is None:
            return
        self._overdue = self._overdue or asked or self._checkpoints.due(step)
        if self._overdue and not later:
            self._overdue = False
            with self.phase("checkpoint"):
                self._checkpoints.save(state(), step)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Show the phase next to the progress bar, if there is one; errors name it as well."""
        self.show(name)
        try:
            with in_phase(name):
                yield
        finally:
            self.show("")

    def __enter__(self) -> Self:
        return self

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
    return {
        f"{group}/{name}": float(column.mean()) for name, column in known.items() if column.size
    }


class Unwritten(MemoryRun):
    """The recorder of ranks that write no rows: theirs are the first rank's."""

    def write(self, table: Table, columns: Columns, *, copy: bool = True) -> None:
        """Forget them."""
