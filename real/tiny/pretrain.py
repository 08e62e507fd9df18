"""The supervised recipes that make the starting checkpoints of the tiny tasks, and their accuracy.

One small Qwen2 model is trained on each task's examples, of questions that problem sets lack. The
judge goes on from the arithmetic's, also with examples of solving, lest that be forgotten.

The same recipe, seed and machine give the same bits; on others accuracy is what can be compared.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch.nn import functional
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from lab.base.files import whole_folder
from lab.progress import Bar
from real.model.machine import torch_threads
from real.model.policy import quiet
from real.record.evaluation import majority_right
from real.tiny import ARITHMETIC, CHECKPOINT, TASKS, Task, build_tokenizer, judging
from real.tiny.tasks import BOX, EOS_ID, PAD_ID, TEMPERATURE, VOCABULARY_SIZE, encode

Batch = TypeVar("Batch")
Folder = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Duration and learning rate of a checkpoint's training."""

    steps: int = 900
    batch_size: int = 64
    """Examples of solving a step."""
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


@dataclass(frozen=True, slots=True)
class VerifyingRecipe(Schedule):
    """Everything but seed and starting checkpoint that the weights of the judge depend on."""

    steps: int = 600
    batch_size: int = 32
    n_conversations: int = 24
    """Conversations a step; about as many tokens of the judge as of solving."""
    learning_rate: float = 2e-3


def build(
    folder: Folder,
    seed: int = 0,
    progress: bool = True,
    recipe: Recipe | None = None,
    task: str = "arithmetic",
) -> "Accuracy":
    """Train the checkpoint of a task and write it to ``folder`` as a local Hugging Face model.

    Leaves config.json, generation_config.json, model.safetensors (float32), the tokenizer and
    recipe.json (task, recipe, seed, accuracy). The folder, which must be new or empty, appears
    whole or not at all.
    """
    recipe = recipe or RECIPES[task]
    with _made(folder) as made:
        model = train_model(recipe, seed, progress, TASKS[task])
        accuracy = measure(model, task=TASKS[task])
        _save(model, made, task=task, recipe=asdict(recipe), seed=seed, measured=asdict(accuracy))
    return accuracy


def build_verifying(folder: Folder, seed: int, progress: bool) -> "tuple[Accuracy, Judgement]":
    """Train the checkpoint that judges, and write it; arguments as for `build`."""
    recipe = VerifyingRecipe()
    with _made(folder) as made:
        model = Qwen2ForCausalLM.from_pretrained(str(CHECKPOINT), local_files_only=True)
        model.config.max_position_embeddings = judging.POSITIONS
        n_judged = recipe.steps * recipe.n_conversations
        turns = judging.conversations(n_judged, recipe.slip_rate, seed)
        judged = (part.split(recipe.n_conversations) for part in turns)
        # The starting checkpoint has seen the examples of seed 0.
        batches = zip(solving_batches(recipe, seed + 1), *judged, strict=True)
        _fit(model, recipe, list(batches), _verifying_loss, progress)
        accuracy, judgement = measure(model), measure_judging(model)
        measured = {"measured": asdict(accuracy), "judging": asdict(judgement)}
        _save(model, made, recipe=asdict(recipe), seed=seed, **measured)
    return accuracy, judgement


@contextmanager
def _made(folder: Folder) -> Iterator[Path]:
    """A new folder, and one torch thread: at this size more only wait, and change the rounding."""
    with whole_folder(Path(folder)) as made, torch_threads(1), quiet():
        yield made


def _save(model: Qwen2ForCausalLM, folder: Path, **record: Any) -> None:
    model.save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    (folder / "recipe.json").write_text(json.dumps(record, indent=2) + "\n")


def train_model(
    recipe: Recipe, seed: int, progress: bool = False, task: Task = ARITHMETIC
) -> Qwen2ForCausalLM:
    """The model after ``recipe.steps`` supervised steps; same arguments, same bits."""
    loss_of = partial(response_loss, prompt_tokens=task.prompt_tokens)
    batches = solving_batches(recipe, seed, task)
    return _fit(initial_model(recipe, seed), recipe, batches, loss_of, progress)


def _fit(
    model: Qwen2ForCausalLM,
    schedule: Schedule,
    batches: Sequence[Batch],
    loss_of: Callable[[Qwen2ForCausalLM, Batch], torch.Tensor],
    progress: bool,
) -> Qwen2ForCausalLM:
    """One optimizer step on the loss of every batch; the model is left in evaluation mode."""
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=(0.9, 0.95), weight_decay=schedule.weight_decay
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


def solving_batches(recipe: Schedule, seed: int, task: Task = ARITHMETIC) -> Sequence[torch.Tensor]:
    """(B, T) int64 ids a step: distinct prompts, each with one response and the end token."""
    rng = np.random.default_rng(seed)
    questions = task.sample_distinct(recipe.steps * recipe.batch_size, rng, held_out=False)
    texts = [f"{one}={task.example(one, recipe.slip_rate, rng)}" for one in questions]
    return torch.tensor([[*encode(text), EOS_ID] for text in texts]).split(recipe.batch_size)


def response_loss(
    model: Qwen2ForCausalLM, batch: torch.Tensor, prompt_tokens: int = ARITHMETIC.prompt_tokens
) -> torch.Tensor:
    """Mean cross-entropy of the response tokens of ``batch`` (B, T), a scalar in nats."""
    logits = model(input_ids=batch[:, :-1]).logits[:, prompt_tokens - 1 :]
    return functional.cross_entropy(logits.flatten(0, 1), batch[:, prompt_tokens:].flatten())


def _verifying_loss(
    model: Qwen2ForCausalLM, batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    """Mean cross-entropies in nats, summed: of responses, verifications, and second responses.

    The sign alone once more: it is one token in 23, and the one that takes a comparison.
    """
    solved, read, targets = batch
    logits, end, sign = model(input_ids=read).logits, judging.FIRST_TURNS, judging.SIGN
    judged = [
        functional.cross_entropy(logits[:, part].flatten(0, 1), targets[:, part].flatten())
        for part in (slice(0, end), slice(end, None), slice(sign, sign + 1))
    ]
    return response_loss(model, solved) + torch.stack(judged).sum()


def _learning_rate(schedule: Schedule, step: int) -> float:
    if step < schedule.warmup_steps:
        return schedule.learning_rate * (step + 1) / schedule.warmup_steps
    done = (step - schedule.warmup_steps) / max(1, schedule.steps - schedule.warmup_steps)
    return schedule.learning_rate * 0.5 * float(1 + np.cos(np.pi * done))


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Measurements of a checkpoint on the problem set before any reinforcement learning."""

    pass_at_1: float
    maj_accuracy: float
    """Share of problems whose majority answer is right; a tie counts as its part."""
    parseable: float
    """Share of responses that end in a box with a number."""
    strong_rivals: float
    """Share of problems in which one wrong answer holds at least a quarter of the votes."""
    n_problems: int
    n_votes: int
    temperature: float = TEMPERATURE


def measure(
    model: PreTrainedModel,
    n_problems: int = 64,
    n_votes: int = 64,
    seed: int = 0,
    task: Task = ARITHMETIC,
) -> Accuracy:
    """Sample a problem set of the task and count; ``seed`` is that of the samples."""
    problems = task.problems(n_problems)
    rows = [problem.prompt for problem in problems for _ in range(n_votes)]
    texts = _sample_texts(model, rows, task.response_tokens, seed)
    answers_NV = np.array(list(map(boxed_number, texts))).reshape(n_problems, n_votes)
    truth_N = np.array([int(problem.answer or 0) for problem in problems])
    pairs = list(zip(answers_NV, truth_N, strict=True))
    rivals = [np.bincount(row[(row >= 0) & (row != truth)], minlength=1) for row, truth in pairs]
    return Accuracy(
        pass_at_1=float((answers_NV == truth_N[:, None]).mean()),
        maj_accuracy=float(np.mean([majority_right(*pair) for pair in pairs])),
        parseable=float((answers_NV >= 0).mean()),
        strong_rivals=float(np.mean([counts.max() >= n_votes / 4 for counts in rivals])),
        n_problems=n_problems,
        n_votes=n_votes,
    )


def _sample_texts(
    model: PreTrainedModel, prompts: list[str], max_tokens: int, seed: int
) -> list[str]:
    responses = np.full(len(prompts), "", object)
    ids = [encode(prompt) for prompt in prompts]
    lengths = np.array(list(map(len, ids)))
    how = {"do_sample": True, "temperature": TEMPERATURE, "top_k": 0, "max_new_tokens": max_tokens}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for length in np.unique(lengths):
            rows = np.flatnonzero(lengths == length)
            read = torch.tensor([ids[row] for row in rows])
            mask = torch.ones_like(read)
            tokens = cast(Any, model).generate(read, attention_mask=mask, **how)[:, length:]
            responses[rows] = build_tokenizer().batch_decode(tokens, skip_special_tokens=True)
    return responses.tolist()


def boxed_number(response: str) -> int:
    """The number in the box that ends ``response``, -1 where there is none."""
    _, box, tail = response.rpartition(BOX)
    number = tail.removesuffix("}")
    is_number = box and tail != number and number.isascii() and number.isdigit()
    return int(number) if is_number else -1


@dataclass(frozen=True, slots=True)
class Judgement:
    """Verdicts of a checkpoint about its own responses to the problem set, one each."""

    true_positive_rate: float
    """Share of right responses that are judged right; NaN without any."""
    false_positive_rate: float
    """Share of wrong responses that are judged right; NaN without any."""
    readable: float
    """Share of verdicts that can be read; the others are in neither rate's numerator."""
    right: float
    own_agrees: float
    """Share of verdicts that follow from comparing the attempt with the judge's own answer."""
    n_problems: int
    n_votes: int
    temperature: float = TEMPERATURE


def measure_judging(
    model: PreTrainedModel, n_problems: int = 64, n_votes: int = 16, seed: int = 0
) -> Judgement:
    """Sample responses and a verdict on each; those without a box are not asked about."""
    rows = [problem for problem in ARITHMETIC.problems(n_problems) for _ in range(n_votes)]
    first = _sample_texts(model, [p.prompt for p in rows], ARITHMETIC.response_tokens, seed)
    tried = [(p, text) for p, text in zip(rows, first, strict=True) if boxed_number(text) >= 0]
    answers = np.array([str(boxed_number(text)) for _, text in tried])
    right = answers == np.array([problem.answer for problem, _ in tried])
    questions = [judging.question(problem.prompt, text) for problem, text in tried]
    said = _sample_texts(model, questions, judging.VERIFICATION_TOKENS, seed + 1)
    verdicts = np.array([judging.read_verdict(text) for text in said])
    digits = np.array([text.rpartition(BOX)[0][-1:] for text in said])  # in front of the box
    return Judgement(
        true_positive_rate=_share(verdicts[right] == 1),
        false_positive_rate=_share(verdicts[~right] == 1),
        readable=float((verdicts >= 0).mean()),
        right=float(right.mean()),
        own_agrees=float(((digits == answers) == (verdicts == 1)).mean()),
        n_problems=n_problems,
        n_votes=n_votes,
    )


def _share(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else float("nan")
