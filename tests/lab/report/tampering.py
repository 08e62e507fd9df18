"""Tamper with a run folder at random and report on it: a script with a limit on time and memory.

    python tampering.py BASE SCRATCH SEED COUNT

BASE holds two runs. COUNT times they are copied, one of the two is changed, and both are reported
on. The script ends with an error at the first report that raises, takes too long or refuses the run
that was left alone, and names the change.
"""

import contextlib
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from lab.report.cli import main

SECONDS, BYTES = 20, 2 << 30
_HANGS, _WHOLE = 300, 300
"""Seconds on the clock for one change, and on the processor for all; SECONDS are on it, too."""
_RESERVED = 2 << 30
"""Address space that libraries reserve and never touch."""
TABLES = ("visits", "steps", "evals", "votes", "answers")
VALUES = (
    None, True, False, -1, 0, 1, 7, 10**6, 2**31, 2**63, 10**400, -0.5, 5.5, 1e308, "", "x", "\x00",
    "=1+1", "<script>", "\ud7ff\r# x", "\x1b]0;x\x07", "x" * 10**6, [], [[]], ["x"] * 5,
    [0] * 40_000, [None], {}, {"a": {"b": 1}}, {"frs": 3}, [1.5, "x"],
)  # fmt: skip
CELLS = (-1, 0, 2, 10**6, 2**31 - 1, 2**40, float("nan"), float("inf"), -0.5, 1.5, 1e308)


def tamper(folder, rng):
    """Change one thing and return its description."""
    kind = rng.choices(["manifest", "table", "bytes", "files"], [5, 6, 2, 2])[0]
    return globals()[f"_{kind}"](folder, rng)


def _manifest(folder, rng):
    path = folder / "run.json"
    values = json.loads(path.read_text())
    place, where = values, []
    while True:
        name = rng.choice(list(place))
        where.append(name)
        if not (isinstance(place[name], dict) and place[name] and rng.random() < 0.7):
            break
        place = place[name]
    if rng.random() < 0.15:
        del place[name]
        what = "nothing"
    elif rng.random() < 0.1:
        deep = rng.choice([15, 900, 100_000])
        place[name] = "DEEP"
        path.write_text(json.dumps(values).replace('"DEEP"', '{"a":' * deep + "1" + "}" * deep))
        return f"run.json: {where} = {deep} deep"
    else:
        place[name] = rng.choice(VALUES)
        what = repr(place[name])[:60]
    path.write_text(json.dumps(values))
    return f"run.json: {where} = {what}"


def _table(folder, rng):
    path = folder / rng.choice(TABLES) / "part-00000.parquet"
    table = pq.read_table(path)
    name, how = rng.choice(table.column_names), rng.randrange(8)
    values, place = table[name].to_pylist(), table.column_names.index(name)
    some = [rng.random() < 0.1 for _ in values]
    cell = rng.choice(CELLS)
    if how == 0:
        table = table.drop_columns([name])
    elif how == 1:
        table = table.slice(0, rng.choice([0, 1, 20]))
    elif how == 2:
        table = pa.concat_tables([table, table.slice(0, 3)])
    else:
        made = {
            3: [None] * len(values),
            4: [None if there else value for there, value in zip(some, values, strict=True)],
            5: [cell] * len(values),
            6: [str(value) for value in values],
            7: [[value] for value in values],
        }[how]
        if how == 5 and name != "text" and rng.random() < 0.7:
            made = [cell if there else old for there, old in zip(some, values, strict=True)]
        try:
            column = pa.array(pd.Series(made))
        except pa.ArrowException:  # values of several types
            column = pa.array([str(value) for value in made])
        table = table.set_column(place, name, column)
    pq.write_table(table, path)
    return f"{path.parent.name}.{name}: way {how}, cell {cell}"


def _bytes(folder, rng):
    path = rng.choice([folder / "run.json", *folder.glob("*/part-*.parquet")])
    content = bytearray(path.read_bytes())
    if rng.random() < 0.3:
        content = content[: rng.randrange(len(content))]
    else:
        for _ in range(rng.choice([1, 5, 200])):
            content[rng.randrange(len(content))] = rng.randrange(256)
    path.write_bytes(content)
    return f"bytes of {path.relative_to(folder)}"


def _files(folder, rng):
    path = rng.choice([folder / "run.json", *(folder / t / "part-00000.parquet" for t in TABLES)])
    how = rng.choice(["gone", "pipe", "folder", "loop", "empty", "large", "device", "no table"])
    path.unlink()
    if how == "pipe":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
    elif how == "loop":
        path.symlink_to(path.name)
    elif how == "empty":
        path.touch()
    elif how == "large":
        with path.open("wb") as file:
            file.truncate(3 << 30)
    elif how == "device":
        path.symlink_to("/dev/zero")
    elif how == "no table" and path.parent != folder:
        path.parent.rmdir()
        path.parent.touch()
    return f"{path.relative_to(folder)}: {how}"


def report(top, page):
    """Return what was written on stderr, the page's or the Markdown's exit code, and the text."""
    err, out = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(out):
        kind = ["-o", str(top / "page.html")] if page else ["--format", "md"]
        code = main([str(top), *kind])
    return err.getvalue(), code, out.getvalue()


def _late(*_):
    raise TimeoutError("it hangs")


def run(base, scratch, seed, count, pages=5):
    """Report on `count` changed copies; every `pages`-th that is read also as a page."""
    resource.setrlimit(resource.RLIMIT_AS, (BYTES + _RESERVED,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (_WHOLE, _WHOLE))
    signal.signal(signal.SIGALRM, _late)
    rng = random.Random(seed)
    left_out, longest = 0, 0.0
    for number in range(count):
        top = scratch / str(number)
        shutil.copytree(base, top)
        what = tamper(top / "changed", rng)
        start = time.process_time()
        signal.alarm(_HANGS)
        try:
            err, code, out = report(top, page=False)
            if code or "left out: " not in err:
                assert not err, err
            assert (code, err.count("\n")) in ((0, 0), (0, 1)), (code, err)
            assert len(err) < 5000 and len(out) < 100_000, "too long"
            left_out += "left out: " in err
            if "left out: " not in err and number % pages == 0:
                assert report(top, page=True)[1] == 0
                assert (top / "page.html").stat().st_size < 12_000_000, "too large"
        except BaseException:
            print(f"change {number}: {what}", file=sys.stderr)
            raise
        signal.alarm(0)
        longest = max(longest, time.process_time() - start)
        shutil.rmtree(top)
    # getrusage would count the peak of the process that started this one, too.
    status = Path("/proc/self/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) << 10
    print(json.dumps({"left_out": left_out, "seconds": longest, "bytes": peak}))


if __name__ == "__main__":
    run(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
