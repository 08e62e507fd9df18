"""Problems from any source that a settings file or a command line can name. Imports no torch."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from lab.base.errors import UserError
from real.model.folder import PREFIX
from real.problems.files import HubName, read_hub, read_rows
from real.problems.problem import Problem, ProblemSet, problem_set
from real.settings.config import BOX_REQUEST, FieldMap, TrainConfig


def read_problems(config: TrainConfig, held_out: bool = False) -> ProblemSet:
    """Return the problems that the settings name, before a check of their length.

    Args:
        held_out: whether to return those that are only evaluated, which follow the others.

    Raises:
        UserError: the source is wrong, has no such number of problems, or lacks needed answers.
    """
    if config.problems is None:
        # Imported here: the package imports transformers, which reading a file does not need.
        from real.tiny import TASKS
        from real.tiny.tasks import closed

        is_closed = config.tiny_task == "closed"
        own = closed(config.tiny_wrong, config.tiny_lead) if is_closed else TASKS[config.tiny_task]
        n_problems = config.n_problems or 64
        made = own.problems(n_problems + config.n_held_out, config.problem_seed)
        made = made[n_problems:] if held_out else made[:n_problems]
        name = "tiny" if config.tiny_task == "arithmetic" else f"tiny-{config.tiny_task}"
        name += "-verifying" if config.tiny_verifies else ""
        name += f"-{config.problem_seed}" if config.problem_seed else ""
        return ProblemSet(name, made)
    problems = load_problems(config.problems, config.fields, config.data_dir, config.hub)
    n_problems = config.n_problems or max(1, len(problems) - config.n_held_out)
    n_all = n_problems + config.n_held_out
    if n_all > len(problems):
        named = f"n_problems = {n_problems}"
        named += f", n_held_out = {config.n_held_out}" if config.n_held_out else ""
        raise UserError(f"{named}: {config.problems} holds {len(problems)}; ask for fewer")
    part = slice(n_problems, n_all) if held_out else slice(n_problems)
    chosen = replace(problems, problems=problems.problems[part])
    unknown = next((p.id for p in chosen if p.answer is None), None)
    if config.labels == "truth" and unknown is not None:
        raise UserError(
            f"labels = 'truth': problem {unknown!r} of {config.problems} has no answer; "
            "add it or train on votes"
        )
    return chosen


def suffix_of(problem: Problem, suffix: str | None) -> str:
    """Return the settings' suffix; by default nothing if the prompt itself asks for a box."""
    return "" if suffix == BOX_REQUEST and problem.asks_for_box else suffix or ""


def load_problems(
    source: str | Path,
    fields: FieldMap | None = None,
    data_dir: str | None = None,
    hub: bool = False,
) -> ProblemSet:
    """Read a set of problems.

    Args:
        source: one of

            * a file: `.json` (a list of objects, or one object a line), `.jsonl`, `.parquet`;
            * `aime24`, `aime25`, `amc` or `math500`;
            * `hf:owner/name[:config][@split]`, which is fetched from the Hugging Face hub.
        fields: which fields to read; found by their usual names if None.
        data_dir: folder of the named sets' files.
        hub: whether a named set without a file may be fetched from the hub.

    Returns:
        The problems in the order of the source, at least one.

    Raises:
        UserError: the source cannot be read, is empty or malformed, or a row is wrong; the message
            names the source, the row (counted from 1; in JSON Lines the line) and the remedy.
    """
    text = str(source)
    fields = FieldMap() if fields is None else fields
    if isinstance(source, str) and text in NAMED:
        return read_named(text, fields, data_dir, hub)
    if isinstance(source, str) and text.startswith(PREFIX):
        name = HubName.parse(text)
        return problem_set(text.removeprefix(PREFIX), str(name), read_hub(name), fields)
    return problem_set(Path(text).stem, text, read_rows(text), fields)


ENVIRONMENT = "GUARD_DATA"
"""Environment variable with the folder of the files, where `data_dir` is not given."""
_TTRL = "github.com/PRIME-RL/TTRL, verl/data"
_SUFFIXES = (".json", ".jsonl", ".parquet")


@dataclass(frozen=True, slots=True)
class NamedSet:
    """One public problem set."""

    title: str
    n_problems: int
    """Problems that the set must hold."""
    folder: str
    """The set's folder in the data of TTRL and of the paper's release."""
    home: str
    """Source of the file."""
    hub: HubName
    """The problem set's name on the Hugging Face hub; ids and the writing of answers may differ."""
    hub_fields: FieldMap = field(
        default_factory=lambda: FieldMap(prompt="problem", answer="answer", id="id")
    )


NAMED = {
    "aime24": NamedSet(
        "AIME 2024",
        30,
        "AIME-TTT",
        f"{_TTRL}/AIME-TTT/test.json",
        HubName("HuggingFaceH4/aime_2024", None, "train"),
    ),
    "aime25": NamedSet(
        "AIME 2025",
        30,
        "AIME25-TTT",
        "huggingface.co/datasets/math-ai/aime25, test.jsonl",
        HubName("math-ai/aime25", None, "test"),
    ),
    "amc": NamedSet(
        "AMC",
        83,
        "AMC-TTT",
        f"{_TTRL}/AMC-TTT/test.json",
        HubName("AI-MO/aimo-validation-amc", None, "train"),
    ),
    "math500": NamedSet(
        "MATH-500",
        500,
        "MATH-TTT",
        f"{_TTRL}/MATH-TTT/test.json",
        HubName("HuggingFaceH4/MATH-500", None, "test"),
        FieldMap(prompt="problem", answer="answer", id="unique_id"),
    ),
}


def read_named(name: str, fields: FieldMap, data_dir: str | None, hub: bool) -> ProblemSet:
    """Read one of the named sets and count its problems.

    Args:
        name: a key of `NAMED`.
        fields: for the file; the hub's fields are known.
        data_dir: folder of the files; the environment variable `GUARD_DATA` if None.
        hub: fetch the set from the Hugging Face hub where there is no file.

    Raises:
        UserError: there is no such file, or it holds another number of problems.
    """
    named = NAMED[name]
    path = _find(name, named, data_dir)
    if path is not None:
        problems = problem_set(name, str(path), read_rows(str(path)), fields)
    elif hub:
        problems = problem_set(name, str(named.hub), read_hub(named.hub), named.hub_fields)
    else:
        raise UserError(_where_to_get(name, named, data_dir))
    if len(problems) != named.n_problems:
        source = named.hub if path is None else path
        raise UserError(
            f"{source}: holds {len(problems)} problems, {named.title} has {named.n_problems}; "
            "give the whole set, or another one by its path with --problems"
        )
    return problems


def _find(name: str, named: NamedSet, data_dir: str | None) -> Path | None:
    """Return the set's file, from a folder of such files or in the TTRL release's layout."""
    given = data_dir or os.environ.get(ENVIRONMENT)
    if not given:
        return None
    folder = Path(given)
    if not folder.is_dir():
        option = "data_dir" if data_dir else ENVIRONMENT
        raise UserError(f"{option} = {given}: no such folder; give the one with {name}.json")
    places = [*(name + suffix for suffix in _SUFFIXES)]
    places += [f"{named.folder}/test{suffix}" for suffix in _SUFFIXES]
    return next((folder / file for file in places if (folder / file).is_file()), None)


def _where_to_get(name: str, named: NamedSet, data_dir: str | None) -> str:
    given = data_dir or os.environ.get(ENVIRONMENT)
    what = f"{given} holds no {name}.json" if given else "no folder with its file is named"
    return (
        f"problems = {name}: {what}; get it ({named.home}), save it as {name}.json and give its "
        f"folder with --data-dir or {ENVIRONMENT}, or allow the download of {named.hub} with --hub"
    )
