"""The supervised recipe that teaches the tiny checkpoint to judge, `real.tiny.VERIFYING`.

It goes on from the shipped checkpoint, so the model solves much as that one does. Every step has
further examples of solving, lest that be forgotten, and conversations of `real.tiny.judging`.
"""

import os
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.nn import functional
from transformers import Qwen2ForCausalLM

from real.model.policy import quiet
from real.tiny import CHECKPOINT, judging
from real.tiny.measure import Accuracy, Judgement, measure, measure_judging
from real.tiny.pretrain import Schedule, fit, published, response_loss, training_tokens

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
_SEED_OF_SOLVING = 1
"""Added to the seed: the starting checkpoint has seen the examples of seed 0."""


@dataclass(frozen=True, slots=True)
class VerifyingRecipe(Schedule):
    """Everything but seed and starting checkpoint that the weights depend on."""

    steps: int = 600
    batch_size: int = 32
    """Examples of solving a step."""
    n_conversations: int = 24
    """Conversations a step; about as many tokens of the judge as of solving."""
    learning_rate: float = 2e-3


def build_verifying(
    folder: str | os.PathLike[str],
    seed: int = 0,
    progress: bool = True,
    recipe: VerifyingRecipe | None = None,
    overwrite: bool = False,
    start: Path = CHECKPOINT,
) -> tuple[Accuracy, Judgement]:
    """Train the checkpoint that judges, and write it as `real.tiny.pretrain.build` does.

    Args:
        folder: where to write; must not exist unless ``overwrite``.
        seed: fixes the training data.
        progress: whether to draw a progress bar on stderr.
        recipe: sizes and rates; the shipped checkpoint's where left out.
        overwrite: replace an existing checkpoint folder.
        start: checkpoint to go on from.

    Raises:
        UserError: if ``folder`` exists and may not be replaced, or cannot be written.
    """
    recipe = recipe or VerifyingRecipe()
    with published(folder, overwrite) as publish:
        model = train_verifying(recipe, seed, progress, start)
        accuracy, judgement = measure(model), measure_judging(model)
        measured = {"measured": asdict(accuracy), "judging": asdict(judgement)}
        publish(model, {"recipe": asdict(recipe), "seed": seed, **measured})
    return accuracy, judgement


def train_verifying(
    recipe: VerifyingRecipe, seed: int, progress: bool = False, start: Path = CHECKPOINT
) -> Qwen2ForCausalLM:
    """The model after the recipe's steps; same arguments, same bits."""
    with quiet():
        model = Qwen2ForCausalLM.from_pretrained(str(start), local_files_only=True)
    model.config.max_position_embeddings = judging.POSITIONS
    n_solved, n_judged = recipe.steps * recipe.batch_size, recipe.steps * recipe.n_conversations
    solved = training_tokens(n_solved, recipe.slip_rate, seed + _SEED_OF_SOLVING)
    read, targets = judging.conversations(n_judged, recipe.slip_rate, seed)
    batches = zip(
        torch.from_numpy(solved).split(recipe.batch_size),
        read.split(recipe.n_conversations),
        targets.split(recipe.n_conversations),
        strict=True,
    )
    return fit(model, recipe, list(batches), _loss, progress)


def _loss(model: Qwen2ForCausalLM, batch: Batch) -> torch.Tensor:
    """Mean cross-entropies in nats, summed: of responses, verifications, and second responses.

    The sign alone once more: it is one token in 23, and the one that takes a comparison.
    """
    solved, read, targets = batch
    logits, end, sign = model(input_ids=read).logits, judging.FIRST_TURNS, judging.SIGN
    parts = (slice(0, end), slice(end, None), slice(sign, sign + 1))
    judged = [
        functional.cross_entropy(logits[:, part].flatten(0, 1), targets[:, part].flatten())
        for part in parts
    ]
    return response_loss(model, solved) + torch.stack(judged).sum()
