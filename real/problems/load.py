"""Problems from any source that a settings file or a command line can name. Imports no torch."""

from __future__ import annotations

import importlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

from lab.base.errors import UserError, first_line, install
from real.model.folder import PREFIX
from real.problems.problem import Problem, ProblemSet, check_answers, kind, problem_set
from real.settings.groups import BOX_REQUEST, FieldMap, ProblemSettings

Rows = Iterator[tuple[int, object]]
"""Rows with their numbers, from 1; in JSON Lines the line."""


def read_problems(
    config: ProblemSettings, held_out: bool = False, with_answers: bool = False
) -> ProblemSet:
    """Return the problems of a source that the settings name, before a check of their length.

    Those to be evaluated only if `held_out`; a UserError where one lacks an answer `with_answers`.
    """
    assert config.problems is not None
    problems = load_problems(config.problems, config.fields, config.data_dir, config.hub)
    n_problems = n_trained(config, len(problems))
    part = slice(n_problems, n_problems + config.n_held_out) if held_out else slice(n_problems)
    chosen = replace(problems, problems=problems.problems[part])
    if with_answers:
        check_answers([(p.id, p.answer) for p in chosen], config.problems)
    return chosen


def n_trained(config: ProblemSettings, n_there: int) -> int:
    """Return how many of a source's problems are trained on; a UserError if it holds fewer."""
    n_problems = config.n_problems or max(1, n_there - config.n_held_out)
    if n_problems + config.n_held_out > n_there:
        named = f"n_problems = {n_problems}"
        named += f", n_held_out = {config.n_held_out}" if config.n_held_out else ""
        raise UserError(f"{named}: {config.problems} holds {n_there}; ask for fewer")
    return n_problems


def suffix_of(problem: Problem, suffix: str | None) -> str:
    """Return the settings' suffix; by default nothing if the prompt itself asks for a box."""
    return "" if suffix == BOX_REQUEST and problem.asks_for_box else suffix or ""


def load_problems(
    source: str | Path,
    fields: FieldMap | None = None,
    data_dir: str | None = None,
    hub: bool = False,
) -> ProblemSet:
    """Read a set of problems, at least one, in the order of the source.

    Args:
        source: one of

            * a file: `.json` (a list of objects, or one object a line), `.jsonl`, `.parquet`;
            * `aime24`, `aime25`, `amc` or `math500`;
            * `hf:owner/name[:config][@split]`, which is fetched from the Hugging Face hub.
        data_dir: folder of the named sets' files; the environment variable `GUARD_DATA` if None.
        hub: whether a named set without a file may be fetched from the hub.

    Raises:
        UserError: the source cannot be read, is empty or malformed, or a row is wrong; the message
            names the source, the row (counted from 1; in JSON Lines the line) and the remedy.
    """
    text = str(source)
    fields = FieldMap() if fields is None else fields
    if isinstance(source, str) and text in NAMED:
        return _read_named(text, fields, data_dir, hub)
    if isinstance(source, str) and text.startswith(PREFIX):
        return problem_set(text.removeprefix(PREFIX), text, _read_hub(text), fields)
    return problem_set(Path(text).stem, text, _read_file(Path(text)), fields)


ENVIRONMENT = "GUARD_DATA"
"""Environment variable with the folder of the files, where `data_dir` is not given."""
_SUFFIXES = (".json", ".jsonl", ".parquet")


@dataclass(frozen=True, slots=True)
class NamedSet:
    """One public problem set."""

    title: str
    n_problems: int
    folder: str
    """The set's folder in the data of TTRL and of the paper's release."""
    hub: str
    """The problem set's name on the Hugging Face hub; ids and the writing of answers may differ."""
    home: str = ""
    """Source of the file, where it is not TTRL's repository."""


_AIME25 = "huggingface.co/datasets/math-ai/aime25, test.jsonl"
NAMED = {
    "aime24": NamedSet("AIME 2024", 30, "AIME-TTT", "hf:HuggingFaceH4/aime_2024@train"),
    "aime25": NamedSet("AIME 2025", 30, "AIME25-TTT", "hf:math-ai/aime25@test", _AIME25),
    "amc": NamedSet("AMC", 83, "AMC-TTT", "hf:AI-MO/aimo-validation-amc@train"),
    "math500": NamedSet("MATH-500", 500, "MATH-TTT", "hf:HuggingFaceH4/MATH-500@test"),
}


def _read_named(name: str, fields: FieldMap, data_dir: str | None, hub: bool) -> ProblemSet:
    named = NAMED[name]
    given = data_dir or os.environ.get(ENVIRONMENT)
    if given and not Path(given).is_dir():
        option = "data_dir" if data_dir else ENVIRONMENT
        raise UserError(f"{option} = {given}: no such folder; give the one with {name}.json")
    # As single files, or in the layout of the TTRL release.
    stems = [Path(given, name), Path(given, named.folder, "test")] if given else []
    files = [Path(f"{stem}{suffix}") for stem in stems for suffix in _SUFFIXES]
    path = next(filter(Path.is_file, files), None)
    if path is None and not hub:
        what = f"{given} holds no {name}.json" if given else "no folder with its file is named"
        home = named.home or f"github.com/PRIME-RL/TTRL, verl/data/{named.folder}/test.json"
        raise UserError(
            f"problems = {name}: {what}; get it ({home}), save it as {name}.json and give its "
            f"folder with --data-dir or {ENVIRONMENT}, or allow the download of {named.hub} with "
            "--hub"
        )
    source, rows = (named.hub, _read_hub(named.hub)) if path is None else (path, _read_file(path))
    problems = problem_set(name, str(source), rows, fields)
    if len(problems) != named.n_problems:
        raise UserError(
            f"{source}: holds {len(problems)} problems, {named.title} has {named.n_problems}; "
            "give the whole set, or another one by its path with --problems"
        )
    return problems


def _read_file(path: Path) -> Rows:
    kind_of_file = path.suffix.lower()
    if kind_of_file not in _SUFFIXES:
        raise UserError(f"{path}: unknown kind of problem file, use one of {', '.join(_SUFFIXES)}")
    try:
        content = BytesIO(path.read_bytes())
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise UserError(f"{path}: cannot be read ({reason}), check the path") from error
    if kind_of_file == ".parquet":
        return _table(path, content)
    text = _text(path, content)
    # `datasets` and pandas write one object a line into .json files, too.
    if kind_of_file == ".jsonl" or _has_lines(text):
        return _lines(path, text)
    rows = _parse(text, lambda line: f"{path}, line {line}")
    if not isinstance(rows, list):
        raise UserError(
            f"{path}: holds {kind(rows)}, not a list; write [{{...}}, ...] or use .jsonl"
        )
    return enumerate(rows, start=1)


def _lines(path: Path, text: str) -> Rows:
    # Not splitlines(): JSON text may hold U+2028 and other characters that it would cut at.
    for row, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield row, _parse(line, lambda _, row=row: f"{path}, row {row}")


def _has_lines(text: str) -> bool:
    """Return whether the first line with text is a whole object and more lines follow."""
    first, _, following = text.strip().partition("\n")
    try:
        return bool(following.strip()) and isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False


def _table(path: Path, content: BytesIO) -> Rows:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(content).read()
    except (pa.ArrowException, OSError) as error:  # the latter for pages that end too soon
        reason = first_line(error)
        raise UserError(f"{path}: cannot be read as a table ({reason}); save it again") from error
    return _rows(str(path), table)


def _rows(source: str, table: Any) -> Rows:
    try:
        return enumerate(table.to_pylist(), start=1)
    except (ValueError, OverflowError) as error:  # text that is not UTF-8, a date that is none
        told = f"{source}: holds a value that cannot be read ({first_line(error)}); mend it"
        raise UserError(told) from error


def _text(path: Path, content: BytesIO) -> str:
    try:
        text = TextIOWrapper(content, "utf-8-sig").read()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}), save it as UTF-8") from error
    if not text.strip():
        raise UserError(f"{path}: the file is empty, give at least one object with a prompt")
    return text


def _parse(text: str, where: Callable[[int], str]) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{where(error.lineno)}, column {error.colno}: malformed JSON ({error.msg.lower()}), "
            "mend it there or just before"
        ) from error
    except (ValueError, RecursionError) as error:
        # A number of thousands of digits, or brackets nested thousands deep.
        told = f"{where(1)}: JSON too large to read, shorten the number or list"
        raise UserError(told) from error


_HUB_NAME = re.compile(rf"{PREFIX}(\w[\w.-]*(?:/\w[\w.-]*)?)(?::([^:@\s]+))?(?:@([^@\s]+))?")


def _read_hub(name: str) -> Rows:
    match = _HUB_NAME.fullmatch(name)
    if match is None:
        raise UserError(f"problems = {name}: not a hub name; write hf:owner/name[:config][@split]")
    path, config, split = match.groups()
    try:
        datasets: Any = importlib.import_module("datasets")
    except ImportError as error:
        raise UserError(
            f"{name}: needs the library datasets, install it with "
            f"{install('hf')}, or give a local .json, .jsonl or .parquet file"
        ) from error
    # The hub's client logs every retry; the final error is raised anyway.
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        loaded = datasets.load_dataset(path, config, split=split)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        # Unknown names, configurations and splits, or no network.
        raise UserError(
            f"{name}: could not be loaded ({first_line(error)}); check name, "
            "configuration, split and network, or give a local file"
        ) from error
    finally:
        logger.setLevel(level)
    if hasattr(loaded, "keys"):
        splits = list(loaded)
        if len(splits) != 1:
            raise UserError(
                f"{name}: holds several splits ({', '.join(splits)}); give one as in "
                f"{name}@{splits[0]}"
            )
        loaded = loaded[splits[0]]
    # As an Arrow table, so that no image or sound is decoded.
    return _rows(name, loaded.with_format("arrow")[:])
