"""TRL's `GRPOTrainer` with a vote and a guard between sampling and training.

All V generations of a problem vote, and the first K of them are trained on. The main process reads
the answers and decides; every process gets the advantages of its rows.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trl
from accelerate.utils import broadcast_object_list, gather_object
from datasets import Dataset
from numpy.typing import NDArray
from torch import Tensor
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint
from trl import GRPOTrainer
from trl.trainer.utils import split_tensor_dict

from lab.base.errors import UserError
from real.other_trainers import GuardedRun, Voted, is_right, problem_ids, update_norm
from real.trl.config import GuardGRPOConfig
from real.update.grpo import denominator, kl_estimate, row_sums, token_loss

PLACE = "guard_place"
"""Column that the data set gets: the place of the problem in it."""
MINORITY = "minority_advantages"
"""The second stream of the trained rows; the first one is TRL's `advantages`."""
_MEANS = ("clip_fraction", "entropy", "kl")


class GuardGRPOTrainer(GRPOTrainer, TrainerCallback):
    """TRL's trainer, paid by the guard. Reward functions, tools and images have no place in it.

    The data sets have the column `prompt`. A column `answer` with the true answer is never trained
    on; the trace tells by it how right the labels are, and an evaluation needs it.
    """

    def __init__(
        self,
        model: Any,
        args: GuardGRPOConfig,
        train_dataset: Any,
        eval_dataset: Dataset | None = None,
        **more: Any,
    ) -> None:
        """Take TRL's arguments but those of its rewards and tools; `more` goes to TRL."""
        for name in more.keys() & {"reward_funcs", "tools", "rollout_func", "environment_factory"}:
            raise UserError(f"{name}: the votes pay, and nothing else; leave it out")
        if not isinstance(train_dataset, Dataset) or not len(train_dataset):
            raise UserError("train_dataset: must be a data set of known length, not a stream")
        names = set(train_dataset.column_names)
        if wrong := names & {"image", "images", PLACE}:
            raise UserError(f"train_dataset: has no use for the column {wrong.pop()}; leave it out")
        if eval_dataset is not None and "answer" not in eval_dataset.column_names:
            raise UserError("eval_dataset: needs the true answers in a column answer")
        train_dataset = train_dataset.add_column(PLACE, range(len(train_dataset)))
        super().__init__(model, [self.votes], args, train_dataset, eval_dataset, **more)
        if self.aux_loss_enabled:
            raise UserError("router_aux_loss_coef: the loss of two streams has no such term; set 0")
        n_problems, name = len(train_dataset), self.model.config.name_or_path or "model"
        self.settings = args.settled(name, n_problems)
        args.learning_rate *= self.settings.step_factor
        rows: Any = train_dataset.select_columns(sorted(names & {"prompt", "answer"}))
        truths = list(rows["answer"]) if "answer" in names else [None] * n_problems
        self.run = GuardedRun(self.settings, problem_ids(rows), truths)
        self._scores: list[float] = []
        self._saves_later = False
        self.add_callback(self)

    def train(self, resume_from_checkpoint: str | bool | None = None, **more: Any) -> Any:
        """Train, with all that the run leaves in its folder; see TRL's."""
        found, main = resume_from_checkpoint, self.is_world_process_zero()
        if found is True and (found := get_last_checkpoint(self.args.output_dir)) is None:
            raise UserError(f"{self.args.output_dir}: holds no checkpoint to go on from")
        if found:
            self.run.load(Path(str(found)))
        backend = f"trl {trl.__version__} on {self.accelerator.num_processes} x {self.args.device}"
        opened = self.run.opened(self.args.folder, "train_dataset", backend)
        with opened if main else contextlib.nullcontext():
            return super().train(resume_from_checkpoint=found or None, **more)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Sample the votes of all problems before training, visit 0."""
        if state.global_step:
            return
        self.model.train()
        batches = self._first_votes()
        if self.is_world_process_zero():
            self.run.prime(batches)
        for _ in batches:  # the other processes only sample
            pass
        self._metrics["train"].clear()

    @torch.no_grad()
    def _first_votes(self) -> Iterator[Any]:
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        size, n_votes = self.settings.batch_size, self.num_generations
        last = len(self.run.visits_N) - 1
        for start in range(0, last + 1, size):
            # Every process has its share; the last problem fills a last batch up.
            places = [min(place, last) for place in range(start, start + size)]
            own = places[rank * size // world : (rank + 1) * size // world]
            prompts = [self.train_dataset[p]["prompt"] for p in own for _ in range(n_votes)]
            texts = gather_object([_text(c) for c in self._generate(prompts)[3]])
            voters = [p for p in places for _ in range(n_votes)]
            yield self._read(texts, voters) if self.is_world_process_zero() else None

    def _read(self, texts: Sequence[str], places: Sequence[int]) -> Voted:
        rows: dict[int, list[int]] = {}
        for row, place in enumerate(places):
            rows.setdefault(place, []).append(row)
        return self.run.read(dict(enumerate(texts)), rows)

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        """TRL's order of problems, drawn anew by seed and epoch, so that a resumed run has it."""
        sampler = super()._get_train_sampler(dataset)
        if sampler.shuffle:
            sampler.set_epoch = lambda n: sampler.generator.manual_seed(sampler.seed + n)
        return sampler

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
    ) -> Tensor:
        """Vote and decide on the main process; returns rewards for TRL's log alone."""
        if not self.model.training:
            rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
            self._scores += rewards[:, 0].tolist()
            return rewards
        own = zip(completions, inputs, completion_ids_list, strict=True)
        rows = gather_object([(_text(said), row[PLACE], len(ids)) for said, row, ids in own])
        found = [self._decided(*zip(*rows, strict=True)) if self.is_world_process_zero() else None]
        broadcast_object_list(found)
        self._columns = torch.as_tensor(found[0], device=self.accelerator.device)
        return self._columns[:, 2:3].float()

    def _decided(
        self, texts: Sequence[str], places: Sequence[int], lengths: Sequence[int]
    ) -> NDArray[np.float64]:
        """(rows, 4) majority and minority advantage, reward, and whether the row is trained on."""
        started = time.perf_counter()
        voted, tokens = self._read(texts, places), dict(enumerate(lengths))
        decided, trained, found = self.run.visit(voted, tokens, self.position(1))
        columns, labels = np.zeros((len(texts), 4)), decided.decision.label
        for keys, answers_V, label in zip(voted.keys, voted.answers_PV, labels, strict=True):
            columns[keys, 2] = (answers_V >= 0) & (answers_V == label)
        columns[trained.keys, :3], columns[trained.keys, 3] = trained.columns, 1
        self._n_updates = len(trained.minis) * self.num_iterations
        self._seconds_guard = time.perf_counter() - started
        for name, value in found.items():
            self._metrics["train"][name].append(value)
        return columns

    def votes(self, completions: list[Any], answer: list[str], **_: Any) -> list[float]:
        """Return TRL's rewards of responses in an evaluation, 1 where the answer is true."""
        how = self.run.supervisor.equality, self.settings.extract
        pairs = zip(completions, answer, strict=True)
        return [float(is_right(_text(said), truth, *how)) for said, truth in pairs]

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if not self.model.training:
            return output
        self._logs["advantages"].clear()
        self._logs["advantages"].extend(self._columns[:, :2].sum(1).tolist())
        start = self.accelerator.process_index * len(inputs)
        majority, minority, _, trained = self._columns[start : start + len(inputs)].T
        output |= {"advantages": majority, MINORITY: minority, "trained": trained.bool()}
        numbers = torch.arange(len(inputs), device=trained.device) % self.num_generations
        voters = numbers < self.settings.n_samples
        return {
            name: value[voters] if isinstance(value, Tensor) and value.ndim else value
            for name, value in output.items()
        }

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        n_passes = self.args.steps_per_generation
        if self._step % (n_passes * self.num_iterations) == 0 or self._buffered_inputs is None:
            self._started = time.perf_counter()
            # Not shuffled, so that an optimizer step has whole problems.
            batch = self._generate_and_score_completions(generation_batch)
            self._buffered_inputs = split_tensor_dict(batch, n_passes)
            self._divide(self._buffered_inputs)
            self._sums = torch.zeros(5, dtype=torch.float64, device=self.accelerator.device)
            self._measured = defaultdict[str, list[float]](list)
        return self._buffered_inputs[self._step % n_passes]

    def _divide(self, passes: list[dict[str, Any]]) -> None:
        """Give every pass the denominator of its optimizer step, over all processes."""
        counts = torch.stack([_counted(rows).sum(1) for rows in passes])
        by_pass = self.accelerator.gather(counts[None]).transpose(0, 1)
        size = self.args.gradient_accumulation_steps
        for start in range(0, len(passes), size):
            step = by_pass[start : start + size].flatten().tolist()
            for rows in passes[start : start + size]:
                rows["denominator"] = denominator([step], self.settings)

    def _compute_loss(self, model: Any, inputs: Any) -> Tensor:
        """Return the loss of both streams over this pass; TRL's own in an evaluation."""
        if MINORITY not in inputs:
            return super()._compute_loss(model, inputs)
        mask = _counted(inputs)
        ids, seen = (
            torch.cat([inputs[f"prompt_{name}"], inputs[f"completion_{name}"]], 1)
            for name in ("ids", "mask")
        )
        logprobs, entropies, _ = self._get_per_token_logps_and_entropies(
            model, ids, seen, mask.shape[1], compute_entropy=True
        )
        old = inputs.get("old_per_token_logps", logprobs.detach())
        streams = inputs["advantages"], inputs[MINORITY]
        values, clipped = token_loss(logprobs, old, *streams, self.settings)
        if "importance_sampling_ratio" in inputs:
            values = values * inputs["importance_sampling_ratio"]
        kl = torch.zeros_like(logprobs)
        if self.beta:
            kl = kl_estimate(logprobs, inputs["ref_per_token_logps"])
        cost = row_sums(values + self.beta * kl, mask, self.settings).sum()
        bottom = inputs["denominator"]
        self._is_empty = bottom == 0
        # Data-parallel wrappers average gradients over the processes.
        loss = cost * (self.accelerator.num_processes / max(1.0, bottom))
        parts = [torch.where(mask, v.detach(), 0.0).sum() for v in (clipped, entropies, kl)]
        self._sums = self._sums + torch.stack(
            [loss.detach() / self.accelerator.num_processes, *parts, mask.sum()]
        )
        return loss

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm)
        if norm is not None and not self._is_empty:
            self._measured["grad_norm"].append(float(norm))
        return norm

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Let nothing move where all problems of the step are skipped."""
        if self._is_empty:
            self.model.zero_grad(set_to_none=True)

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Measure how far the step went."""
        optimizer: Any = getattr(self.optimizer, "optimizer", self.optimizer)
        rates = [group["lr"] for group in optimizer.param_groups]
        norm = 0.0 if self._is_empty else update_norm(optimizer, rates)
        self._measured["lr"].append(rates[0])
        self._measured["update_norm"].append(norm)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Put a checkpoint off to the end of the batch, whose votes are in no checkpoint."""
        ends = state.global_step % args.n_updates == 0
        if ends:
            self._end_batch()
        wanted = control.should_save or self._saves_later
        control.should_save, self._saves_later = wanted and ends, wanted and not ends
        return control

    def _end_batch(self) -> None:
        """Write the row of a batch after its last optimizer step."""
        loss, *sums, n_tokens = self.accelerator.reduce(self._sums, reduction="sum").tolist()
        pairs = zip(_MEANS, sums, strict=True)
        means = {name: total / max(1.0, n_tokens) for name, total in pairs}
        for name, mean in means.items():
            self._metrics["train"][name].append(mean)
        if self.is_world_process_zero():
            if not self.beta:
                del means["kl"]
            row = {
                "grad_norm": np.nan,  # without any step that moved
                **{name: float(np.mean(values)) for name, values in self._measured.items()},
                **means,
                "loss": loss / max(1, self._n_updates),
                "n_updates": self._n_updates,
                "seconds_guard": self._seconds_guard,
                "seconds_step": time.perf_counter() - self._started,
            }
            self.run.end_step(row, self.state.global_step / self.state.max_steps)

    def position(self, begun: int = 0) -> dict[str, int]:
        """Return step and epoch of the trace: batches of votes, with `begun` that have no end."""
        step = self.state.global_step // self.args.n_updates + begun
        n_batches = len(self.run.visits_N) // self.settings.batch_size
        return {"step": step, "epoch": -(-step // n_batches)}

    def evaluate(self, *args: Any, **more: Any) -> Any:
        """Evaluate by the true answers; see TRL's."""
        self._scores = []
        metrics = super().evaluate(*args, **more)
        if self._scores and self.is_in_train and self.is_world_process_zero():
            scores, size = np.array(self._scores, float), self.settings.eval_samples
            self.run.evaluated(scores, len(scores) // size, self.position())
        return metrics

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Write the guard's part before TRL's, at the end of which the checkpoint is the latest."""
        if self.is_world_process_zero():
            name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            self.run.save(Path(self.args.output_dir) / name, self.position()["step"])
        super()._save_checkpoint(model, trial)


def _text(completion: Any) -> str:
    return completion if isinstance(completion, str) else str(completion[-1]["content"] or "")


def _counted(rows: Any) -> Tensor:
    """(R, T) bool, the tokens of the loss."""
    return rows["completion_mask"].bool() & rows["trained"][:, None]
