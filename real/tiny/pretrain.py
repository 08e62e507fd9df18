"""The supervised recipes that make the starting checkpoints of the tiny tasks.

One small Qwen2 model is trained on responses. Of the arithmetic part follows the right rule and
part two misconceptions (`real.tiny.arithmetic.shares`), with slips; `real.tiny.arithmetic` says how
many of the wrong answers that a majority vote later meets come from them. Of the Collatz steps all
is right, and training ends before the model masters them. Closed answers are drawn by the shares
that votes are to have. Questions of the problem sets are held out.

The same recipe, seed and machine give the same bits. Other machines differ in rounding, so there
the weights agree only roughly and accuracy is what can be compared.
"""

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors.torch import save
from torch.nn import functional
from transformers import Qwen2Config, Qwen2ForCausalLM

from lab.base.errors import UserError
from lab.progress import Bar
from real.tiny import TASKS
from real.tiny.arithmetic import ARITHMETIC
from real.tiny.measure import Accuracy, measure
from real.tiny.task import Task
from real.tiny.vocabulary import EOS_ID, PAD_ID, VOCABULARY_SIZE, build_tokenizer, encode

Batch = TypeVar("Batch")


@dataclass(frozen=True, slots=True)
class Schedule:
    """Duration and learning rate of a checkpoint's training."""

    steps: int = 900
    batch_size: int = 64
    learning_rate: float = 4e-3
    """Peak; linear warm-up, then cosine to zero."""
    warmup_steps: int = 50
    weight_decay: float = 0.01
    slip_rate: float = 0.01
    """Chance that a reduction of the arithmetic writes a wrong digit; 0 for other tasks."""


@dataclass(frozen=True, slots=True)
class Recipe(Schedule):
    """Everything but the seed that the weights depend on."""

    width: int = 64
    layers: int = 2
    heads: int = 2
    mlp_width: int = 192
    initial_std: float = 0.05
    rope_theta: float = 100.0
    """Base of the rotary embedding; small, because no text is longer than 32 tokens."""


RECIPES = {
    "arithmetic": Recipe(),
    "collatz": Recipe(steps=400, layers=1, heads=8, slip_rate=0.0),
    "closed": Recipe(slip_rate=0.0),
}
"""Of the shipped checkpoints, by task."""


def build(
    folder: str | os.PathLike[str],
    seed: int = 0,
    progress: bool = True,
    recipe: Recipe | None = None,
    overwrite: bool = False,
    task: str = "arithmetic",
) -> Accuracy:
    """Train the checkpoint of a task and write it to ``folder`` as a local Hugging Face model.

    Leaves config.json, generation_config.json, model.safetensors (float32), the tokenizer and
    recipe.json (task, recipe, seed, accuracy). The folder appears whole or not at all.

    Args:
        folder: where to write; must not exist unless ``overwrite``.
        seed: fixes the initial weights and the training data.
        progress: whether to draw a progress bar on stderr.
        recipe: sizes and rates; the shipped checkpoint's where left out.
        overwrite: replace an existing checkpoint folder.
        task: a key of `real.tiny.TASKS`.

    Raises:
        UserError: if ``folder`` exists and may not be replaced, or cannot be written.
    """
    recipe = recipe or RECIPES[task]
    with published(folder, overwrite) as publish:
        model = train_model(recipe, seed, progress, TASKS[task])
        accuracy = measure(model, task=TASKS[task])
        made = {"task": task, "recipe": asdict(recipe), "seed": seed}
        publish(model, {**made, "measured": asdict(accuracy)})
    return accuracy


@contextmanager
def published(
    folder: str | os.PathLike[str], overwrite: bool
) -> Iterator[Callable[[Qwen2ForCausalLM, dict[str, Any]], None]]:
    """One torch thread, and a function that writes model and recipe.json to `folder` at once.

    Raises:
        UserError: as for `build`.
    """
    target = Path(folder)
    _check_target(target, overwrite)
    with _scratch_beside(target) as scratch, _one_thread():
        yield lambda model, record: _publish(model, record, scratch, target)


def train_model(
    recipe: Recipe, seed: int, progress: bool = False, task: Task[Any] = ARITHMETIC
) -> Qwen2ForCausalLM:
    """The model after ``recipe.steps`` supervised steps; same arguments, same bits."""
    model = initial_model(recipe, seed)
    tokens = training_tokens(recipe.steps * recipe.batch_size, recipe.slip_rate, seed, task)
    batches = torch.from_numpy(tokens).split(recipe.batch_size)
    loss_of = partial(response_loss, prompt_tokens=task.prompt_tokens)
    return fit(model, recipe, batches, loss_of, progress)


def fit(
    model: Qwen2ForCausalLM,
    schedule: Schedule,
    batches: Sequence[Batch],
    loss_of: Callable[[Qwen2ForCausalLM, Batch], torch.Tensor],
    progress: bool = False,
) -> Qwen2ForCausalLM:
    """One optimizer step on the loss of every batch; the model is left in evaluation mode."""
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=schedule.learning_rate,
        betas=(0.9, 0.95),
        weight_decay=schedule.weight_decay,
    )
    model.train()
    bar = Bar(batches, desc="pretraining", unit="step", disable=not progress)
    for step, batch in enumerate(bar):
        for group in optimizer.param_groups:
            group["lr"] = _learning_rate(schedule, step)
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            bar.set_postfix(loss=f"{loss.item():.3f}")
    return model.eval()


def initial_model(recipe: Recipe, seed: int) -> Qwen2ForCausalLM:
    """The untrained model, 109k parameters at the default sizes; leaves torch's own seed alone."""
    config = Qwen2Config(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=recipe.width,
        intermediate_size=recipe.mlp_width,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        max_position_embeddings=64,
        initializer_range=recipe.initial_std,
        rope_parameters={"rope_type": "default", "rope_theta": recipe.rope_theta},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config).float()


def training_tokens(
    n: int, slip_rate: float, seed: int, task: Task[Any] = ARITHMETIC
) -> np.ndarray:
    """(n, T) int64 ids: ``n`` distinct prompts, each with one response and the end token."""
    rng = np.random.default_rng(seed)
    questions = task.sample_distinct(n, rng, held_out=False)
    texts = [f"{question}={task.example(question, slip_rate, rng)}" for question in questions]
    return np.array([[*encode(text), EOS_ID] for text in texts], dtype=np.int64)


def response_loss(
    model: Qwen2ForCausalLM,
    batch: torch.Tensor,
    prompt_tokens: int = ARITHMETIC.prompt_tokens,
) -> torch.Tensor:
    """Mean cross-entropy of the response tokens of ``batch`` (B, T), a scalar in nats."""
    logits = model(input_ids=batch[:, :-1]).logits[:, prompt_tokens - 1 :]
    targets = batch[:, prompt_tokens:]
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _learning_rate(schedule: Schedule, step: int) -> float:
    """Linear warm-up, then cosine to zero at the last step."""
    if step < schedule.warmup_steps:
        return schedule.learning_rate * (step + 1) / schedule.warmup_steps
    done = (step - schedule.warmup_steps) / max(1, schedule.steps - schedule.warmup_steps)
    return schedule.learning_rate * 0.5 * float(1 + np.cos(np.pi * done))


def _check_target(target: Path, overwrite: bool) -> None:
    exists = os.path.lexists(target)
    if exists and not overwrite:
        raise UserError(f"{target} exists already: choose another folder or ask to overwrite it")
    if exists and not (target / "recipe.json").is_file():
        raise UserError(f"{target} is not a tiny checkpoint (no recipe.json), so it is left alone")


@contextmanager
def _scratch_beside(target: Path) -> Iterator[Path]:
    """A folder on the target's file system, made before training so that a bad path fails first."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(dir=target.parent, prefix=".tiny-")
    except OSError as error:
        raise _unwritable(target, error) from error
    with scratch as name:
        yield Path(name)


def _publish(model: Qwen2ForCausalLM, record: dict[str, Any], scratch: Path, target: Path) -> None:
    """Write everything in ``scratch``, then rename: no half-written checkpoint is ever seen."""
    fresh = scratch / "checkpoint"
    try:
        _save_model(model, fresh)
        build_tokenizer().save_pretrained(fresh)
        (fresh / "recipe.json").write_text(json.dumps(record, indent=2) + "\n")
        if target.exists():
            target.rename(scratch / "replaced")
        fresh.rename(target)
    except OSError as error:
        raise _unwritable(target, error) from error


def _unwritable(target: Path, error: OSError) -> UserError:
    reason = error.strerror or error
    return UserError(f"cannot write {target}: {reason}; choose a folder that you may write to")


def _save_model(model: Qwen2ForCausalLM, folder: Path) -> None:
    """Write the files of ``save_pretrained`` for a tied model, without a progress bar on stderr."""
    model.config.dtype = torch.float32
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    assert model.generation_config is not None
    model.generation_config.save_pretrained(folder)
    tensors = {k: v for k, v in model.state_dict().items() if k != "lm_head.weight"}
    (folder / "model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))


@contextmanager
def _one_thread() -> Iterator[None]:
    """One torch thread: at this size more threads only wait, and they change the rounding."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
