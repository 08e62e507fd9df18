"""The commands of `guard-verl`, which need neither verl nor Ray."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from guard_core import GuardConfig
from guard_core.config import GROUP_OF, PROFILES, Count, Natural, Positive
from guard_core.rcsu import skip_cap
from lab.base.errors import UserError, first_line
from lab.base.files import check_new_file, whole
from lab.base.settings import to_values
from lab.options import POSITIONAL
from lab.trace.manifest import check_new
from real.problems import NAMED, load_problems
from real.problems.load import suffix_of
from real.problems.problem import ProblemSet
from real.settings.config import TrainConfig, check_other_trainer
from real.settings.engines import divides_heads
from real.settings.groups import BOX_REQUEST, FieldMap, Settings
from real.settings.presets import STUDIES, model_of
from real.settings.resolve import settings_of

TEMPLATE = Path(__file__).with_name("cell.sh").read_text(encoding="utf-8")
"""The script of `guard-verl config`, with names in braces for values."""
VERL_NAMES = {name: verls for verls, name in re.findall(r"^  ([\w.]+)=\{(\w+)\}$", TEMPLATE, re.M)}
"""The trainer's name of a setting, or one of the script's own, to verl's."""
LOSSES = {"dapo": "token-mean", "grpo": "seq-mean-token-mean", "dr_grpo": "seq-mean-token-sum-norm"}
"""Average of the loss, the trainer's name to verl's."""


def check_plugin(settings: TrainConfig) -> None:
    """Refuse rules that read more than votes, and what verl cannot follow."""
    check_other_trainer(settings, "verl", "guard.")
    guard, size = settings.guard, settings.batch_size
    least, cap = guard.margin.min_share, skip_cap(size, guard)
    if (least > 0 or cap >= size) and guard.advantages.skip_by == "drop":
        raise UserError(
            f"guard.min_share = {least:g}, guard.skip_share = {guard.flat()['skip_share']:g}: "
            f"could skip all {size} problems of a batch, which verl cannot train without; take "
            "guard.skip_by = mask"
        )


def write_problems(
    path: Path, sets: Sequence[ProblemSet], suffix: str | None, system_prompt: str | None = None
) -> int:
    """Write problem sets into one Parquet file for verl."""
    import pyarrow as pa  # too slow for --help
    import pyarrow.parquet as pq

    # The columns that verl's `RLHFDataset` and its reward loop read, and the problem's id.
    text = pa.string()
    schema = pa.schema(
        {
            "data_source": text,
            "prompt": pa.list_(pa.struct({"role": text, "content": text})),
            "reward_model": pa.struct({"style": text, "ground_truth": text}),
            "extra_info": pa.struct({"index": pa.int64(), "id": text}),
        }
    )
    if path.suffix != ".parquet":
        raise UserError(f"{path}: verl reads Parquet; give a name that ends in .parquet")
    check_new_file(path)
    rows: list[dict[str, Any]] = []
    for name, problem in ((problems.name, problem) for problems in sets for problem in problems):
        chat = problem if system_prompt is None else problem.under_system(system_prompt)
        row = {
            "data_source": name,
            "prompt": chat.messages(suffix_of(chat, suffix)),
            "reward_model": {"style": "rule", "ground_truth": problem.answer},
            "extra_info": {"index": len(rows), "id": problem.id},
        }
        rows.append(row)
    with whole(path) as place:
        pq.write_table(pa.Table.from_pylist(rows, schema), place)
    return len(rows)


@dataclass(kw_only=True)
class ConfigCommand(Settings):
    """Print a shell script that runs one of the paper's cells on verl, with its sources.

    Examples:
        guard-verl config --preset qwen2.5-7b/math500 > run.sh
        guard-verl config --preset qwen2.5-7b/math500 --arm ttrl > ttrl.sh
        guard-verl config --preset qwen3-4b/amc --nodes 2 --gpus 8 > cluster.sh
    """

    preset: str
    """One of the paper's cells, such as qwen2.5-7b/math500; see `guard-train presets`."""
    arm: str = "guard"
    """Arm of the comparison: ttrl, guard, frozen, memory, truth, ..."""
    step_factor: Positive | None = None
    """Factor on the learning rate; that of the arm at matched effort is found by
    `guard-train compare`."""
    nodes: Count = 1
    gpus: Count = 8
    """GPUs of each node."""
    gpu_memory: Positive = 80.0
    """GiB of each GPU."""
    model: str | None = None
    """Folder of the model, on a disk that all nodes see."""
    problems: str | None = None
    """Parquet file of `guard-verl problems`, on such a disk; named after the set if None."""
    out: str = "runs/verl"
    """Run folder, on such a disk."""
    seed: Natural = 0
    """Of the votes, of the guard and of the problems' order."""

    def run(self) -> None:
        """Print the script."""
        if self.preset in STUDIES:
            raise UserError(f"preset = {self.preset!r}: a study for a CPU; run it with guard-train")
        from real.plan import PlannedModel, read_config  # imports torch

        given = {name: getattr(self, name) for name in ("preset", "arm", "step_factor")}
        config = replace(settings_of(given, with_model=True), step_factor=self.step_factor or 1.0)
        check_plugin(config)
        out = Path(os.path.abspath(self.out))
        if not (out / "checkpoints" / "latest_checkpointed_iteration.txt").exists():
            check_new(out)
        model, data = model_of(self.preset), config.problems or ""
        described, rows = read_config(model), config.mini_batch * config.n_samples
        size, positions = PlannedModel(described).size(), described.max_position_embeddings
        file, n_problems = Path(self.problems or f"{data}.parquet"), NAMED[data].n_problems
        by_epoch = config.eval_steps == -(-n_problems // config.batch_size)
        if file.is_file():
            import pyarrow.parquet as pq  # too slow for --help

            try:
                n_problems = pq.read_metadata(file).num_rows
            except (OSError, ValueError) as error:  # ValueError is the base of pyarrow's own
                reason = first_line(error)
                raise UserError(f"{file}: cannot be read as Parquet ({reason})") from error
        n_batches, left_out = divmod(n_problems, config.batch_size)
        if not n_batches:
            told = f"{n_problems} problems are no batch of {config.batch_size}; give as many"
            raise UserError(f"{file}: {told}")
        values: dict[str, Any] = {
            **asdict(self),
            **to_values(config),
            **_spread(size, rows, positions, self),
            "rows": rows,
            "seed": self.seed,
            "model": self.model or f"path/to/{model}",
            "model_name": model,
            "problem_file": os.path.abspath(file),
            "out": out,
            "checkpoints": out / "checkpoints",
            "loss": LOSSES[config.loss],
            "uses_kl": config.kl_coef > 0,
            "n_batches": n_batches,
            "eval_steps": n_batches if by_epoch else config.eval_steps,
            "left_out": left_out,
        }
        shown = {name: shlex.quote(_written(value)) for name, value in values.items()}
        guard = (f"+guard.{name}={shlex.quote(_written(v))}" for name, v in _guard(config))
        shown["guard"] = "\n  ".join(guard)
        shown["address"] = "RAY_ADDRESS=auto " if self.nodes > 1 else ""
        print(TEMPLATE.format_map(shown), end="")


def _spread(size: Any, rows: int, positions: int, cell: ConfigCommand) -> dict[str, Any]:
    """Return how many GPUs share rows, weights and state, and whether it is kept on the host."""
    world, card = cell.nodes * cell.gpus, cell.gpu_memory * 2**30
    heads = size.n_heads, size.n_kv_heads
    shared = [n for n in range(1, size.n_heads + 1) if world % n == 0 and divides_heads(n, *heads)]
    even = next((n for n in shared if rows % (world // n) == 0), None)
    if even is None:
        raise UserError(
            f"nodes, gpus: the {rows} rows of a mini-batch cannot be dealt evenly to {world} GPUs; "
            "take a smaller power of two"
        )
    copies = [n for n in shared if cell.gpus % n == 0]
    # vLLM's weights, and with them the cache of one sequence of all positions, less than which verl
    # lets it refuse; half of the GPU is vLLM's.
    weights, cache = 2 * size.n_weights, 2 * size.n_kv * positions
    whole = {n: weights / n + cache / min(n, size.n_kv_heads) for n in copies}
    fits = (n for n in copies if weights / n <= 0.25 * card and whole[n] <= 0.4 * card)
    return {
        "data_ranks": world // even,
        "sequence_ranks": even,
        "tensor_ranks": next(fits, copies[-1]),
        # A weight, its gradient and AdamW's moments, in single precision.
        "offload": 16 * size.n_weights / world > 0.5 * card,
    }


def _guard(config: TrainConfig) -> list[tuple[str, Any]]:
    """Return the profile closest to the run's guard, what differs from it, and other settings."""
    wanted, usual = config.guard.flat(), TrainConfig()

    def beside(name: str) -> list[tuple[str, Any]]:
        others = wanted.items() - GuardConfig.profile(name).flat().items()
        # A part that is off has no settings.
        on = [(n, value) for n, value in others if wanted.get(GROUP_OF.get(n, ""), True)]
        return [("profile", name), *sorted(on)]

    guards = map(beside, PROFILES)
    others = ((n, getattr(config, n)) for n in ("labels", "rule", "step_factor", "treatment"))
    return min(guards, key=len) + [(n, v) for n, v in others if v != getattr(usual, n)]


def _written(value: Any) -> str:
    """Return a value in Hydra's grammar of overrides."""
    text = str(value).removesuffix(".0") if isinstance(value, float) else str(value)
    quoted = "'" + text.replace("'", "\\'") + "'"
    return text if re.fullmatch(r"[\w/.:@+-]+", text) else quoted


@dataclass(kw_only=True)
class ProblemsCommand:
    """Write problem sets as one Parquet file for verl, with an index that is unique in it.

    Examples:
        guard-verl problems math500 --out math500.parquet
        guard-verl problems aime24 amc --out both.parquet
        guard-verl problems mine.jsonl --fields.prompt question --out mine.parquet
    """

    sources: Annotated[tuple[str, ...], POSITIONAL]
    """aime24, aime25, amc, math500, files (.json .jsonl .parquet) or hf:NAME, as --problems of
    guard-train takes them."""
    out: Path
    """Parquet file to make; must not exist yet."""
    fields: FieldMap = field(default_factory=FieldMap)
    """Fields of problem files; those left out are found by their usual names."""
    data_dir: str | None = None
    """Folder of aime24.json, aime25.json, amc.json, math500.json; GUARD_DATA if None."""
    hub: bool = False
    """Fetch a named problem set without a file from the Hugging Face hub."""
    prompt_suffix: str = BOX_REQUEST
    """Text put behind every prompt; by default none where the prompt itself asks for a box."""
    system_prompt: str | None = None
    """First message of every prompt, in place of one in the problem file."""

    def run(self) -> None:
        """Write the file, and say how many problems it holds."""
        sets = [load_problems(name, self.fields, self.data_dir, self.hub) for name in self.sources]
        n_problems = write_problems(self.out, sets, self.prompt_suffix, self.system_prompt)
        print(f"{self.out}: {n_problems} problems, extra_info.index 0 to {n_problems - 1}")


COMMANDS = {"problems": ProblemsCommand, "config": ConfigCommand}

ABOUT = """Files and commands for TTRL-Guard as a plugin of verl, on one GPU or a cluster.

Examples:
    guard-verl problems math500 --out math500.parquet
    guard-verl config --preset qwen2.5-7b/math500 > run.sh
    bash run.sh
"""
