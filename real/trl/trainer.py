"""TRL's `GRPOTrainer` with a vote and a guard between sampling and training.

All V generations of a problem vote, and the first K of them are trained on. The main process reads
the answers and decides; every process gets the advantages of its rows.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trl
from accelerate.utils import broadcast_object_list, gather_object
from datasets import Dataset
from torch import Tensor
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOTrainer
from trl.trainer.utils import split_tensor_dict

from lab.base.errors import UserError
from real.other_trainers import MINORITY, GuardedRun, Voted, is_right, update_norm
from real.trl.config import GuardGRPOConfig
from real.update.grpo import denominator, kl_estimate, row_sums, token_loss

PLACE = "guard_place"
"""Column that the data set gets: the place of the problem in it."""


_NEUTRAL = {
    "bad_words_ids": None, "begin_suppress_tokens": None, "epsilon_cutoff": 0, "eta_cutoff": 0,
    "exponential_decay_length_penalty": None, "forced_bos_token_id": None,
    "forced_eos_token_id": None, "guidance_scale": 1, "min_length": 0, "min_new_tokens": 0,
    "min_p": 0, "no_repeat_ngram_size": 0, "sequence_bias": None, "suppress_tokens": None,
    "typical_p": 1,
}  # fmt: skip
"""Settings of a model's own generation that change what is sampled, and values without effect."""


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
        names, n_problems = set(train_dataset.column_names), len(train_dataset)
        if wrong := names & {"image", "images", PLACE}:
            raise UserError(f"train_dataset: has no use for the column {wrong.pop()}; leave it out")
        if eval_dataset is not None and "answer" not in getattr(eval_dataset, "column_names", ()):
            raise UserError("eval_dataset: must be one set, with true answers in a column answer")
        placed = train_dataset.add_column(PLACE, range(n_problems))
        args = copy.copy(args)  # which changes, and may serve another trainer
        super().__init__(model, [self.votes], args, placed, eval_dataset, **more)
        if self.aux_loss_enabled:
            raise UserError("router_aux_loss_coef: the loss of two streams has no such term; set 0")
        # The library takes them where TRL sets none; the loss would not know of them.
        for name, neutral in _NEUTRAL.items() if hasattr(self, "generation_config") else ():
            value = getattr(self.model.generation_config, name, None)
            if value not in (None, neutral, []) and getattr(self.generation_config, name) is None:
                raise UserError(
                    f"generation_config.{name} = {value}: the model would sample by it, and not be "
                    f"scored by it; set model.generation_config.{name} = None"
                )
        self.settings = args.settled(self.model.config.name_or_path or "model", n_problems)
        args.learning_rate *= self.settings.step_factor
        truths = train_dataset["answer"] if "answer" in names else [None] * n_problems
        prompts = train_dataset["prompt"]
        self.run = GuardedRun(self.settings, prompts, truths, prompts)
        self._scores: list[float] = []
        self._put_off = dict.fromkeys(("should_evaluate", "should_save"), False)
        self.add_callback(self)

    def train(self, *args: Any, **more: Any) -> Any:
        """Train, with all that the run leaves in its folder; see TRL's."""
        with contextlib.ExitStack() as self._opened:
            return super().train(*args, **more)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        self.run.load(Path(resume_from_checkpoint))
        super()._load_from_checkpoint(resume_from_checkpoint, model)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Open the run folder, and sample the votes of all problems before training, visit 0."""
        if self.is_world_process_zero():
            folder = Path(args.guard_folder or f"{args.output_dir}-guard")
            backend = f"trl {trl.__version__} on {self.accelerator.num_processes} x {args.device}"
            self._opened.enter_context(self.run.opened(folder, "train_dataset", backend))
        if votes := [] if state.global_step else list(self._first_votes()):
            self.run.prime(votes)
        self._metrics["train"].clear()

    @torch.no_grad()
    def _first_votes(self) -> Iterator[Voted]:
        """Yield the votes of all problems, on the main process; the others only sample."""
        self.model.train()
        world, last = self.accelerator.num_processes, len(self.train_dataset) - 1
        for start in range(0, last + 1, self.settings.batch_size):
            # Every process has its share; the last problem fills a last batch up.
            places = np.arange(start, start + self.settings.batch_size).clip(max=last)
            voters = places.repeat(self.num_generations)
            part = np.split(voters, world)[self.accelerator.process_index]
            said = self._generate(self.train_dataset[part.tolist()]["prompt"])[3]
            texts, problems = gather_object(list(map(_text, said))), voters.tolist()
            if self.is_world_process_zero():
                yield self.run.read(dict(enumerate(texts)), dict(enumerate(problems)))

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
        responses = zip(completions, inputs, completion_ids_list, strict=True)
        rows = gather_object([(_text(said), row[PLACE], len(ids)) for said, row, ids in responses])
        columns = [np.empty((0, 4))]
        if self.is_world_process_zero():
            started = time.perf_counter()
            texts, places, lengths = (dict(enumerate(column)) for column in zip(*rows, strict=True))
            paid = self.run.visit(self.run.read(texts, places), lengths)
            trained = set(paid.keys)
            columns = [np.array([[*paid.columns[row], row in trained] for row in texts])]
            self._seconds_guard = time.perf_counter() - started
            for name, value in paid.metrics.items():
                self._metrics["train"][name].append(value)
        broadcast_object_list(columns)
        # Majority and minority advantage, reward, and whether the row is trained on.
        self._columns = torch.as_tensor(columns[0], device=self.accelerator.device)
        return self._columns[:, 2:3].float()

    def votes(self, completions: list[Any], answer: list[str], **_: Any) -> list[float | None]:
        """Return TRL's rewards of responses in an evaluation, 1 where the answer is true."""
        equality, extract = self.run.supervisor.equality, self.settings.extract
        pairs = zip(completions, answer, strict=True)
        return [is_right(_text(said), truth, equality, extract) for said, truth in pairs]

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if not self.model.training:
            return output
        self._logs["advantages"].clear()
        self._logs["advantages"].extend(self._columns[:, :2].sum(1).tolist())
        start = self.accelerator.process_index * len(inputs)
        majority, minority, _, trained = self._columns[start : start + len(inputs)].T
        mask = output["completion_mask"] * trained.bool()[:, None]
        output |= {"advantages": majority, MINORITY: minority, "completion_mask": mask}
        numbers = torch.arange(len(inputs), device=trained.device) % self.num_generations
        kept = numbers < self.settings.n_samples
        return {
            name: value[kept] if isinstance(value, Tensor) and value.ndim else value
            for name, value in output.items()
        }

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        n_passes, size = self.args.steps_per_generation, self.args.gradient_accumulation_steps
        if self._step % (n_passes * self.num_iterations) == 0 or self._buffered_inputs is None:
            self._started = time.perf_counter()
            # Not shuffled, so that an optimizer step has whole problems.
            batch = self._generate_and_score_completions(generation_batch)
            self._buffered_inputs = split_tensor_dict(batch, n_passes)
            # Every pass has the denominator of its optimizer step, over all processes.
            counts = torch.stack([rows["completion_mask"].sum(1) for rows in self._buffered_inputs])
            counts = self.accelerator.gather(counts[None])
            for number, rows in enumerate(self._buffered_inputs):
                of_step = counts[:, number - number % size :][:, :size].flatten(1)
                rows["denominator"] = denominator(of_step.tolist(), self.settings)
            self._sums = torch.zeros(5, dtype=torch.float64, device=counts.device)
            self._measured = defaultdict[str, list[float]](list)
        return self._buffered_inputs[self._step % n_passes]

    def _compute_loss(self, model: Any, inputs: Any) -> Tensor:
        """Return the loss of both streams over this pass; TRL's own in an evaluation."""
        if MINORITY not in inputs:
            return super()._compute_loss(model, inputs)
        mask = inputs["completion_mask"].bool()
        ids, seen = (
            torch.cat([inputs[f"prompt_{name}"], inputs[f"completion_{name}"]], 1)
            for name in ("ids", "mask")
        )
        logprobs, entropies, _ = self._get_per_token_logps_and_entropies(
            model, ids, seen, mask.shape[1], compute_entropy=True
        )
        old = inputs.get("old_per_token_logps", logprobs.detach())
        majority, minority = inputs["advantages"], inputs[MINORITY]
        values, clipped = token_loss(logprobs, old, majority, minority, self.settings)
        values = values * inputs.get("importance_sampling_ratio", 1.0)
        kl = values.new_zeros(())
        if self.beta:
            kl = kl_estimate(logprobs, inputs["ref_per_token_logps"])
            values = values + self.beta * kl
        loss = row_sums(values, mask, self.settings).sum() / max(1.0, inputs["denominator"])
        self._is_empty = inputs["denominator"] == 0
        parts = [torch.where(mask, v.detach(), 0.0).sum() for v in (clipped, entropies, kl)]
        self._sums = self._sums + torch.stack([loss.detach(), *parts, mask.sum()])
        # Data-parallel wrappers average gradients over the processes.
        return loss * self.accelerator.num_processes

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """Measure the gradient; where all problems of the step are skipped, let nothing move."""
        norm = super()._get_grad_norm(model, grad_norm)
        if self._is_empty:
            self.model.zero_grad(set_to_none=True)
        else:
            self._measured["grad_norm"].append(float(norm))
        return norm

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Measure how far the step went."""
        optimizer: Any = getattr(self.optimizer, "optimizer", self.optimizer)
        self._measured["lr"].append(optimizer.param_groups[0]["lr"])
        self._measured["update_norm"].append(0.0 if self._is_empty else update_norm(optimizer))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Put evaluation and checkpoint off to the end of the batch, the place of their rows."""
        ends = state.global_step % args.n_updates == 0
        for name, late in self._put_off.items():
            wanted = late or getattr(control, name)
            setattr(control, name, wanted and ends)
            self._put_off[name] = wanted and not ends
        if ends:
            self._end_batch()
        return control

    def _end_batch(self) -> None:
        """Write the row of a batch after its last optimizer step."""
        loss, *sums, n_tokens = self.accelerator.reduce(self._sums, reduction="sum").tolist()
        names = "clip_fraction", "entropy", *(["kl"] if self.beta else [])
        means = {name: total / max(1.0, n_tokens) for name, total in zip(names, sums, strict=False)}
        for name, mean in means.items():
            self._metrics["train"][name].append(mean)
        if self.is_world_process_zero():
            n_updates = len(self._measured.get("grad_norm", ()))
            row = {
                "grad_norm": np.nan,  # without any step that moved
                **{name: float(np.mean(values)) for name, values in self._measured.items()},
                **means,
                "loss": loss / max(1, n_updates),
                "n_updates": n_updates,
                "seconds_guard": self._seconds_guard,
                "seconds_step": time.perf_counter() - self._started,
            }
            self.run.end_step(row, self.state.global_step / self.state.max_steps)

    def on_evaluate(self, *_: Any, **__: Any) -> None:
        """Write the row of an evaluation."""
        scores, self._scores = self._scores, []
        if scores and self.is_in_train and self.is_world_process_zero():
            # Further ones are of responses that fill up the last batches of some processes.
            each, n_rows = self.settings.eval_samples, getattr(self.eval_dataset, "num_rows", None)
            self.run.evaluated(np.array(scores[: n_rows and n_rows * each]), each)

    def on_predict(self, *_: Any, **__: Any) -> None:
        """Forget the scores, which are of no evaluation."""
        self._scores = []

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Write the guard's part before TRL's, at the end of which the checkpoint is the latest."""
        if self.is_world_process_zero():
            name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            self.run.save(Path(self.args.output_dir) / name)
        super()._save_checkpoint(model, trial)


def _text(completion: Any) -> str:
    return completion if isinstance(completion, str) else str(completion[-1]["content"] or "")
