"""Makes the runs of the studies of docs/language-model.md, and the tables of them.

python docs/tools/language_runs.py choose STUDY MODEL runs/language  # the problems
python docs/tools/language_runs.py run STUDY MODEL runs/language     # the rows in docs/data

STUDY is one of `STUDIES`, MODEL the folder that `guard-train import-gguf` made. The same command
goes on where an interrupted one stopped, and makes no run again that has a row.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from run_rows import DATA, add, finished, known, rows

import real.__main__
from lab.base.columns import ints, select, where
from lab.base.files import whole
from lab.trace.trace import Trace, load
from real.settings.presets import STUDIES as PRESETS
from real.settings.presets import preset

POOLS, START = DATA / "language-pools.csv", DATA / "language-start.csv"
CHOOSING_SEED, N_POOL = 1000, 188
START_SEED, START_VOTES = 1002, 144
"""Votes on a problem in a whole run: 16 before training and at each of 8 visits."""
PRESET = "smollm2/multiplication"
N_TRAINED, N_HELD_OUT, N_VOTES = (
    int(PRESETS[PRESET][name]) for name in ("n_problems", "n_held_out", "n_votes")
)


class Block(NamedTuple):
    """Runs of one seed, one after another: paired by their votes before training."""

    task: str
    """The problems: a preset's, or those of `products_of`."""
    seed: int
    arms: tuple[str, ...]
    lr: float
    dtype: str = "bfloat16"


MAIN, REST = ("ttrl", "guard", "memory", "recommended"), ("guard_release", "frozen", "kl", "truth")
THREE = ("ttrl", "memory", "recommended")
POOL_NUMBERS, FIRST_SETS = (1, 2, 3, 4), (30, 50, 70, 90)
PRECISIONS = (("float32", 1e-5), ("bfloat16", 3e-5))
RATES = (3e-5, 1e-5, 3.33e-6)
_FIRST = [(1, MAIN), (2, MAIN), (1, REST), (3, MAIN), (4, MAIN), (2, REST)]

STUDIES: dict[str, tuple[Block, ...]] = {
    "multiplication": tuple(
        Block("multiplication", seed, arms, lr) for seed, arms in _FIRST for lr in (3e-5, 1e-5)
    ),
    "letters": tuple(Block("letters", seed, MAIN, 3e-5) for seed in (1, 2, 3, 4)),
    "vote": tuple(
        Block(f"set-{number}", seed, (*THREE, "frozen"), lr, dtype)
        for (dtype, lr), seed, number in product(PRECISIONS, (1, 2, 3), POOL_NUMBERS)
    ),
    "rate": tuple(
        Block("set-1", seed, THREE, lr, "float32") for seed, lr in product(range(11, 19), RATES)
    ),
    "first": tuple(
        Block(f"first-{share}", seed, THREE, 1e-5, "float32")
        for seed, share in product(range(1, 7), FIRST_SETS)
    ),
}
"""Study to its runs in their order: what time does not allow is dropped from the end."""
TABLES = {"multiplication": "language-model", "letters": "language-model"}
"""Study to its file in docs/data, if that is not language-STUDY.csv."""
WORDS = (
    "banana ceremony elephant letter mississippi committee tomorrow successful balloon coffee "
    "parallel programming classroom bookkeeper engineer remember together different beginning "
    "excellent possession address happiness necessary tennessee millennium occurrence referee"
)


def main(argv: Sequence[str]) -> int:
    """Make what is missing; return the first failed command's exit code."""
    parser = argparse.ArgumentParser(description="Make the runs of a study of a language model.")
    parser.add_argument("step", choices=["choose", "run"])
    parser.add_argument("study", choices=[*STUDIES])
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    own = parser.parse_args(argv)
    if own.step == "choose" and own.study not in TABLES:
        parser.error(f"{own.study}: its problems are chosen by its runs")
    own.out.mkdir(parents=True, exist_ok=True)
    return (run if own.step == "run" else choose)(own.study, own.model, own.out)


def choose(task: str, model: str, out: Path) -> int:
    """Write the problems of which some votes before training are right, and some are wrong."""
    pool, folder, name = out / f"{task}.json", out / f"pool-{task}", f"smollm2/{task}"
    problems = {"multiplication": products, "letters": letters}[task]()[:N_POOL]
    pool.write_text(json.dumps(problems))
    words = f"--preset {name} --model {model} --problems {pool} --arm ttrl --lr 1e-9 --quiet"
    words += f" --seed {CHOOSING_SEED} --epochs 1 --n-samples 2 --n-held-out 0"
    words += f" --n-problems {len(problems)}"
    if code := real.__main__.main(["run", "--out", str(folder), *words.split()]):
        return code
    before = where(load(folder).visits, epoch=0).sort_values("problem")["label_accuracy"]
    n_kept = PRESETS[name]["n_problems"] + PRESETS[name]["n_held_out"]
    chosen = [problems[i] for i in np.flatnonzero(before.between(0.1, 0.9))[:n_kept]]
    Path(PRESETS[name]["problems"]).write_text(json.dumps(chosen, indent=0) + "\n")
    return 0


def products_of(task: str, model: str, out: Path) -> list[str]:
    """Return the ids of a new set's products, those to be trained on first.

    `set-K` holds the first 36 products of pool K of which between .1 and .9 of 16 responses are
    right; `first-S` the first of all pools such that the majority is right on S percent of 24, none
    of them twice.
    """
    kind, number = task.split("-")
    if kind == "set":
        return list(fit_products(int(number), model, out)["id"][: N_TRAINED + N_HELD_OUT])
    left = pd.concat([fit_products(pool, model, out) for pool in POOL_NUMBERS], ignore_index=True)
    for share in FIRST_SETS[: FIRST_SETS.index(int(number)) + 1]:
        n_right = round(N_TRAINED * share / 100)
        right, wrong = (left[left["majority"] == flag] for flag in (1, 0))
        own = pd.concat([right[:n_right], wrong[: N_TRAINED - n_right]]).sort_index()
        left = left.drop(own.index)
    return list(own["id"])


def fit_products(pool: int, model: str, out: Path) -> pd.DataFrame:
    """Return the rows of a pool with some right and some wrong responses before training."""

    def sample() -> pd.DataFrame:
        used = {row["id"] for row in json.loads(Path(PRESETS[PRESET]["problems"]).read_text())}
        left = [row for row in products(range(3, 100)) if row["id"] not in used]
        part = left[pool - 1 :: len(POOL_NUMBERS)]
        return sampled(model, part, out / f"pool-{pool}.json", N_VOTES, CHOOSING_SEED)

    table = kept(POOLS, "pool", pool, sample)
    return select(table, table["right"].between(0.1, 0.9).to_numpy())


def kept(
    path: Path, column: str, value: int | str, make: Callable[[], pd.DataFrame]
) -> pd.DataFrame:
    """Return the rows of a file with a value in its first column; make and add them if none has."""
    table = pd.read_csv(path) if path.is_file() else pd.DataFrame({column: []})
    if not (table[column] == value).any():
        new = make()
        new.insert(0, column, value)
        table = pd.concat([table, new]) if len(table) else new
        with whole(path) as file:
            table.to_csv(file, index=False, float_format="%.4f")
    return select(table, (table[column] == value).to_numpy())


def sampled(
    model: str, problems: Sequence[dict[str, Any]], file: Path, n: int, seed: int
) -> pd.DataFrame:
    """Sample n responses of the start model to every problem, in single precision.

    Returns:
        A row per problem: id, right (share of the responses that are right) and majority (chance
        that their majority is right, ties broken at random).
    """
    from real.answers import AnswerIds
    from real.record.evaluation import majority_right
    from real.run import prepare
    from real.settings.seeds import Stream

    file.write_text(json.dumps(problems))
    changes = {"n_problems": len(problems), "n_held_out": 0, "n_votes": n, "seed": seed}
    given = preset(PRESET, model, problems=str(file), dtype="float32", **changes)
    made = prepare(given.settled())
    ids, lines = AnswerIds(made.prompts.truths), []
    for part in made.first_votes(made.prompts, Stream.VOTES):
        for i, texts in zip(part.problems, part.texts, strict=True):
            answers, truth = ids.ids(i, texts, made.config.extract), ids.truth_id(i)
            line = {"id": made.prompts.problems[i].id, "right": (answers == truth).mean()}
            lines.append(line | {"majority": majority_right(answers, truth)})
    return pd.DataFrame(lines)


def products(first: Iterable[int] = range(3, 30)) -> list[dict[str, Any]]:
    """Return products as chats with one worked example, in random order."""
    pairs = [(a, b) for a in first for b in range(3, 10) if (a, b) != (3, 5)]
    random.Random(0).shuffle(pairs)
    return [_product(a, b) for a, b in pairs]


def _product(a: int, b: int) -> dict[str, Any]:
    example = ("Solve.", "3 * 5 = ?", "3 * 5 = 15. \\boxed{15}")
    return _problem(f"{a}*{b}", example, f"{a} * {b} = ?", str(a * b))


def letters() -> list[dict[str, Any]]:
    """Return counts of a letter in a word as chats with one worked example, in random order."""
    question = 'How many times does the letter {} appear in "{}"?'
    example = ("Answer.", question.format("a", "panama"), "\\boxed{3}")
    pairs = [(letter, word) for word in WORDS.split() for letter in sorted(set(word))]
    random.Random(0).shuffle(pairs)
    return [
        _problem(f"{a} in {word}", example, question.format(a, word), str(word.count(a)))
        for a, word in pairs
    ]


def _problem(name: str, example: Sequence[str], asked: str, answer: str) -> dict[str, Any]:
    turns = zip(("system", "user", "assistant"), example, strict=True)
    chat = [{"role": role, "content": text} for role, text in turns]
    return {"id": name, "prompt": [*chat, {"role": "user", "content": asked}], "answer": answer}


def run(study: str, model: str, out: Path) -> int:
    """Make the runs that have no row yet, in the order of the study, and add their rows."""
    table = DATA / f"{TABLES.get(study, f'language-{study}')}.csv"
    for task, seed, arms, lr, dtype in STUDIES[study]:
        words, folder = f"compare --preset smollm2/{study}", out / task
        if study not in TABLES:
            names = products_of(task, model, out)
            file, folder = out / f"{task}.json", out / study / f"{task}-{dtype}"
            problems = [_product(*map(int, name.split("*"))) for name in names]
            file.write_text(json.dumps(problems))
            words = f"compare --preset {PRESET} --problems {file} --dtype {dtype}"
            words += f" --n-held-out {len(problems) - N_TRAINED}"
        words += f" --model {model} --seeds {seed} --jobs 1 --lrs {lr:g} --quiet --out {folder}"
        for arm in arms:
            if len(where(known(table), task=task, lr=lr, seed=seed, arm=arm)):
                continue
            if code := real.__main__.main([*words.split(), "--arms", arm]):
                return code
            # Rows of other runs stay, also where this version would name other settings in them.
            add_finished(table, folder / f"lr-{lr:g}" / arm / f"seed-{seed}", task)
        if study not in TABLES:
            how = model, problems, out / f"start-{task}.json", START_VOTES, START_SEED
            kept(START, "set", task, partial(sampled, *how))
    return 0


def add_finished(table: Path, folder: Path, task: str) -> None:
    """Add the rows of finished runs below a folder to a table."""
    add(table, pd.concat([described(f).assign(task=task) for f in finished([folder])]))


EVALS = ["pass_at_16", "held_out_pass_at_1", "strict_pass_at_1", "flexible_pass_at_1"]


def described(folder: Path) -> pd.DataFrame:
    """Return the row of `run_rows`, and what a language model's run tells beside it."""
    trace = load(folder)
    last = int(ints(trace.visits, "epoch").max())
    by_epoch = trace.visits.groupby("epoch")
    curves = {
        name: " ".join(f"{value:.4f}" for value in by_epoch[column].mean())
        for name, column in (("accuracy_by_visit", "label_accuracy"), ("flips_by_visit", "flipped"))
    }
    scores = trace.evals.reindex(columns=EVALS)  # nothing may be held out
    evals = {
        f"{name}_{when}": 100 * scores[name].iloc[place]
        for name in EVALS
        for when, place in (("start", 0), ("final", -1))
    }
    before, end = (where(trace.visits, epoch=epoch) for epoch in (0, last))
    unread = [100 * (v["n_unparseable"].sum() / v["n_votes"].sum()) for v in (before, end)]
    agreed = (end["match_rate"] >= 0.9) & ~end["label_correct"]
    return rows([folder]).assign(
        arm=trace.run.arm,
        **evals,
        unread_start=unread[0],
        unread_final=unread[1],
        false_consensus=100 * agreed.mean(),
        leak=100 * leak(trace, last),
        repeated_final=100 * where(trace.steps, epoch=last)["repeated"].mean(),
        **curves,
    )


def leak(trace: Trace, epoch: int) -> float:
    """Return the share of an epoch's votes on answers that nobody gave before training."""
    assert trace.votes is not None
    before = where(trace.votes, epoch=0)[["problem", "answer"]]
    after = where(trace.votes, epoch=epoch).merge(before, how="left", indicator=True)
    return float(after.loc[after["_merge"] == "left_only", "count"].sum() / after["count"].sum())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
