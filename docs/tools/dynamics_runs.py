"""Compare the checkpoints of tiny runs with their start model, for `docs/dynamics.md`.

python docs/tools/dynamics_runs.py set1=runs/pilot ... # writes docs/data/dynamics-runs.csv and
                                                       # dynamics-steps.csv

Each run was made with --checkpoint-every 8 --checkpoint-keep 100. All quantities are exact sums
over the distinct responses that the start model gave in 256 samples per problem, whose
log-probabilities and gradients (on all weights) are computed under the weights of every checkpoint.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from dynamics import write
from safetensors.torch import load_file
from torch.func import functional_call, grad, vmap

from lab import load
from lab.measures.kernel import LEAST, SURE, Classes
from real.measure.gradients import log_probs
from real.measure.tree import distinct_responses
from real.model.policy import Policy, load_policy
from real.record.stored import stored_config
from real.tiny import TASKS, starting_checkpoint
from real.tiny.measure import boxed_number
from real.tiny.vocabulary import PAD_ID, encode

SAMPLES, LEAST_RESPONSE = 256, 5e-3
"""Responses per problem, and the probability from which one counts for the gradients."""
EPOCHS, KERNEL_EPOCHS = (0, 1, 2, 3, 4, 6, 9, 12), (1, 3, 12)
"""At which the mass on the start's responses is summed, and the kernel is compared."""
STEPS = (0.02, 0.06)
"""Norms of single steps along a label's gradient."""
EACH = 2
"""Steps are taken for one label in so many."""

Weights = dict[str, torch.Tensor]


class Start:
    """The start model of a run, its responses R and their answer classes C."""

    def __init__(self, run: Path) -> None:
        """Sample the responses."""
        config = replace(stored_config(run), attention="eager").settled()
        self._temperature = config.temperature
        folder = starting_checkpoint(config.tiny_task, config.tiny_verifies)
        self._policy = load_policy(folder, "cpu", "float32", "eager")
        named = self._policy.model.named_parameters()
        self.weights = {name: p.detach().clone() for name, p in named}
        made = TASKS[config.tiny_task].problems(config.n_problems or 64, config.problem_seed)
        self.prompts = [encode(p.prompt) for p in made]
        samples = sample(self._policy, self.prompts, config.temperature)
        distinct = [distinct_responses(*rows) for rows in zip(*samples, strict=True)]
        self._responses = [response for of_problem in distinct for response in of_problem]
        self.problem_R = np.repeat(range(len(made)), [len(r) for r in distinct])
        texts = self._policy.tokenizer.batch_decode(self._responses, skip_special_tokens=True)
        answer_R = np.array([boxed_number(text) for text in texts])
        self.right_R = answer_R == np.array([int(p.answer) for p in made])[self.problem_R]
        self._p_R = np.exp(self.log_p(self.weights, np.arange(len(answer_R))))
        self.used_U = np.flatnonzero((self._p_R >= LEAST_RESPONSE) & (answer_R >= 0))
        key_U = self.problem_R[self.used_U] * 10 + answer_R[self.used_U]
        key_C, self._class_U = np.unique(key_U, return_inverse=True)
        self._problem_C, self._right_C = key_C // 10, np.zeros(len(key_C), bool)
        self._right_C[self._class_U] = self.right_R[self.used_U]

    def log_p(self, weights: Mapping[str, torch.Tensor], rows: np.ndarray) -> np.ndarray:
        """Log-probabilities of some responses under the given weights."""
        model, log_p = self._policy.model, np.zeros(len(rows))
        model.load_state_dict({**self.weights, **weights}, strict=False)
        for n, prompt in enumerate(self.prompts):
            places = np.flatnonzero(self.problem_R[rows] == n)
            own = [self._responses[row] for row in rows[places]]
            found = log_probs(model, prompt, own, self._temperature, PAD_ID)
            log_p[places] = [
                log_p_TA[range(len(tokens)), tokens].sum()
                for tokens, log_p_TA in zip(own, found, strict=True)
            ]
        return log_p

    def classes(self, weights: Mapping[str, torch.Tensor]) -> Classes:
        """Answer classes of the start, with the gradients that they have under given weights.

        Responses keep the weight in their class that they have at the start.
        """
        p_U = self._p_R[self.used_U]
        p_C = np.bincount(self._class_U, p_U)
        gradient_CD = np.zeros((len(p_C), sum(w.numel() for w in self.weights.values())))
        for place, gradient_D in enumerate(self._gradients({**self.weights, **weights})):
            c = self._class_U[place]
            gradient_CD[c] += gradient_D * (p_U[place] / p_C[c])
        p_C /= np.bincount(self._problem_C, p_C)[self._problem_C]
        mean_ND = np.zeros((len(self.prompts), gradient_CD.shape[1]))
        np.add.at(mean_ND, self._problem_C, p_C[:, None] * gradient_CD)
        gradient_CD -= mean_ND[self._problem_C]
        self._kept_C = p_C >= LEAST
        return Classes(self._problem_C, p_C, self._right_C, gradient_CD).take(self._kept_C)

    def class_log_p(self, weights: Mapping[str, torch.Tensor]) -> np.ndarray:
        """Log-probabilities of the classes that `classes` returned."""
        p_U = np.exp(self.log_p(weights, self.used_U))
        return np.log(np.bincount(self._class_U, p_U))[self._kept_C]

    def _gradients(self, weights: Weights) -> Iterator[np.ndarray]:
        """Gradients of single responses' log-probabilities on all weights."""
        length, prompt = max(map(len, self._responses)), len(self.prompts[0])

        def log_p(of: Weights, ids_L: torch.Tensor, mask_T: torch.Tensor) -> torch.Tensor:
            arguments = {"input_ids": ids_L[None, :-1], "use_cache": False}
            logits = functional_call(self._policy.model, of, (), arguments).logits[0, prompt - 1 :]
            log_p_TA = torch.log_softmax(logits / self._temperature, -1)
            return (log_p_TA.gather(1, ids_L[prompt:, None])[:, 0] * mask_T).sum()

        gradient = vmap(grad(log_p), (None, 0, 0))
        for start in range(0, len(self.used_U), 64):
            rows = self.used_U[start : start + 64]
            tokens = [self._responses[row] for row in rows]
            rest = [length - len(row) for row in tokens]
            ids = [
                [*self.prompts[self.problem_R[row]], *own, *[PAD_ID] * more]
                for row, own, more in zip(rows, tokens, rest, strict=True)
            ]
            mask = [[1.0] * (length - more) + [0.0] * more for more in rest]
            parts = gradient(weights, torch.tensor(ids), torch.tensor(mask))
            yield from torch.cat([parts[n].flatten(1) for n in self.weights], 1).numpy()


def sample(
    policy: Policy, prompts: list[list[int]], temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and lengths of the start model's responses."""
    from real.engines.rollouts import Sampling
    from real.engines.transformers_engine import TransformersEngine

    engine = TransformersEngine(policy.model, policy.eos_token_ids, policy.pad_token_id, 1024)
    generator = torch.Generator().manual_seed(123)
    rollouts = engine.sample(prompts, SAMPLES, Sampling(22, temperature, 1.0), generator)
    return rollouts.tokens_PNT, rollouts.lengths_PN


def of_checkpoints(name: str, run: Path, start: Start) -> Iterator[dict[str, Any]]:
    """One row per checkpoint of a run that ends an epoch."""
    evals = load(run).evals.set_index("epoch").pass_at_1
    batches = stored_config(run)
    per_epoch = -(-len(start.prompts) // batches.batch_size)
    first = start.classes({})
    norm2_C = np.diag(first.kernel_CC)
    sound_C = norm2_C > 1e-2 * np.median(norm2_C)
    pair_CC = (first.problem_C[:, None] != first.problem_C) & sound_C[:, None] & sound_C
    everything = np.arange(len(start.problem_R))
    for path in sorted((run / "checkpoints").glob("step-*/model.safetensors")):
        epoch, rest = divmod(int(path.parent.name.removeprefix("step-")), per_epoch)
        if rest or epoch not in EPOCHS:
            continue
        weights = load_file(path)
        p_R = np.exp(start.log_p(weights, everything))
        row: dict[str, Any] = {
            "run": name,
            "lr": batches.lr,
            "epoch": epoch,
            "distance": distance(start.weights, weights),
            "kept": p_R.sum() / len(start.prompts),
            "kept_right": p_R[start.right_R].sum() / len(start.prompts),
            "pass_at_1": evals[epoch],
        }
        if epoch in KERNEL_EPOCHS:
            kernel_CC, now_CC = first.kernel_CC, start.classes(weights).kernel_CC
            before, after = kernel_CC[pair_CC], now_CC[pair_CC]
            row["correlation"] = np.corrcoef(before, after)[0, 1]
            row["growth_others"] = np.sqrt((after**2).mean() / (before**2).mean())
            row["growth_own"] = np.median(np.diag(now_CC)[sound_C] / norm2_C[sound_C])
        yield row


def of_steps(name: str, start: Start) -> Iterator[dict[str, Any]]:
    """One row per label and size of a step up and down along the label's gradient."""
    found, before_C = start.classes({}), start.class_log_p({})
    labels = [label for label in found.label_N if found.p_C[label] < SURE][::EACH]
    for size, label in product(STEPS, labels):
        gradient_D = found.gradient_CD[label]
        step_D = size * gradient_D / np.linalg.norm(gradient_D)
        changes = {
            side: start.class_log_p(moved(start.weights, sign * step_D)) - before_C
            for side, sign in (("up", 1), ("down", -1))
        }
        changes["linear"] = found.gradient_CD @ step_D
        other_C = found.problem_C != found.problem_C[label]
        row = {"set": name, "size": size, "problem": found.problem_C[label]}
        for side, change_C in changes.items():
            others_C = change_C[other_C]
            row[f"own_{side}"] = change_C[label]
            row[f"others_{side}"] = np.sqrt((others_C**2).mean())
            row[f"correlation_{side}"] = np.corrcoef(others_C, changes["linear"][other_C])[0, 1]
        yield row


def moved(weights: Weights, step_D: np.ndarray) -> Weights:
    """The weights after a step on all of them."""
    sizes = [w.numel() for w in weights.values()]
    parts = torch.from_numpy(step_D).float().split(sizes)
    return {n: w + part.view_as(w) for (n, w), part in zip(weights.items(), parts, strict=True)}


def distance(start: Weights, weights: Mapping[str, torch.Tensor]) -> float:
    """|theta - theta_0|."""
    return float(sum((weights[n] - start[n]).square().sum() for n in weights if n in start) ** 0.5)


def main(words: list[str]) -> None:
    """Add the rows of the named runs to both tables, in place of older ones of the same runs."""
    taken: set[str] = set()
    for word in words:
        name, folder = word.split("=")
        start, run = Start(Path(folder)), Path(folder)
        write("runs", pd.DataFrame(of_checkpoints(name, run, start)), ["run", "lr"])
        if name not in taken:
            taken.add(name)
            write("steps", pd.DataFrame(of_steps(name, start)), ["set"])


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:])
