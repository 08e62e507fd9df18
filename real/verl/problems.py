"""Problem sets as the Parquet files that verl reads; needs neither verl nor torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lab.base.errors import UserError
from lab.base.files import check_new_file, whole
from real.problems.load import suffix_of
from real.problems.problem import ProblemSet

_TURN = pa.struct([("role", pa.string()), ("content", pa.string())])
SCHEMA = pa.schema(
    {
        "data_source": pa.string(),
        "prompt": pa.list_(_TURN),
        "reward_model": pa.struct([("style", pa.string()), ("ground_truth", pa.string())]),
        "extra_info": pa.struct([("index", pa.int64()), ("id", pa.string())]),
    }
)
"""The columns that verl's `RLHFDataset` and its reward loop read, and the problem's id."""


def write_problems(
    path: Path, sets: Sequence[ProblemSet], suffix: str | None, system_prompt: str | None = None
) -> int:
    """Write problem sets into one Parquet file for verl.

    Args:
        path: the file; must not exist.
        sets: problems, in order; `extra_info.index` counts through all of them from 0, since the
            guard remembers a problem by it.
        suffix: appended to prompts, as the setting `prompt_suffix`.
        system_prompt: first message of every prompt, as the setting of that name.

    Returns:
        The number of problems.

    Raises:
        UserError: the file exists or cannot be written.
    """
    if path.suffix != ".parquet":
        raise UserError(f"{path}: verl reads Parquet; give a name that ends in .parquet")
    check_new_file(path)
    rows: list[dict[str, Any]] = []
    for name, problem in ((own.name, problem) for own in sets for problem in own):
        asked = problem if system_prompt is None else problem.under_system(system_prompt)
        row = {
            "data_source": name,
            "prompt": asked.messages(suffix_of(problem, suffix)),
            "reward_model": {"style": "rule", "ground_truth": problem.answer},
            "extra_info": {"index": len(rows), "id": problem.id},
        }
        rows.append(row)
    with whole(path) as place:
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), place)
    return len(rows)
