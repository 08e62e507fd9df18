"""Problems from any source that a settings file or a command line can name."""

from __future__ import annotations

from pathlib import Path

from real.model.folder import PREFIX
from real.problems.fields import FieldMap
from real.problems.files import read_rows
from real.problems.hub import HubName, read_hub
from real.problems.named import NAMED, read_named
from real.problems.problem import ProblemSet
from real.problems.rows import problem_set


def load_problems(
    source: str | Path,
    fields: FieldMap | None = None,
    data_dir: str | None = None,
    hub: bool = False,
) -> ProblemSet:
    """Read a set of problems.

    Args:
        source: one of

            * a file: `.json` (a list of objects, or one object a line), `.jsonl`, `.parquet`,
              `.arrow`;
            * a folder that `datasets` saved with `save_to_disk`, `FOLDER@SPLIT` where it holds
              several splits;
            * `aime24`, `aime25`, `amc` or `math500` (write `./amc` for a folder of that name);
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
