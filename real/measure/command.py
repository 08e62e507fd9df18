"""`guard-train measure`: a model and its problems in, one response file out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lab.base.errors import UserError
from lab.base.files import check_new_file
from lab.trace.manifest import read_manifest
from lab.trace.response import Response, write_response
from real.answers import AnswerIds, Equality, Extract
from real.engines.rollouts import Sampling
from real.engines.transformers_engine import TransformersEngine
from real.measure.measuring import MeasureConfig, Report, Sampler, measure
from real.model.folder import model_folder
from real.model.policy import Policy, load_policy
from real.model.prepare import prepare_training
from real.problems.load import read_problems
from real.problems.prompts import PromptSet, build_prompts
from real.record.checkpoint import FOLDER, INDEX, trained_weights
from real.record.resuming import fingerprint
from real.settings.config import TrainConfig
from real.settings.seeds import Stream, torch_generator
from real.tiny import starting_checkpoint

_MOST_CHECKPOINTS = 8
"""Checkpoints that growth is measured from, evenly spaced; more add time and little else."""


def measure_to(
    out: Path,
    config: TrainConfig,
    how: dict[str, Any],
    growth: Path | None,
    report: Report,
) -> str:
    """Measure and write a response file.

    Args:
        out: the file; must not exist.
        config: settings of the run that is to be predicted.
        how: fields of `MeasureConfig`; the seed is that of `config`.
        growth: as for `measure_model`.
        report: as for `measure_model`.

    Returns:
        One line with the size of the result.

    Raises:
        UserError: the file exists or cannot be written, or model, problems or run are wrong.
    """
    check_new_file(out)
    response = measure_model(config, MeasureConfig(**{"seed": config.seed, **how}), growth, report)
    write_response(out, response)
    facts = response.facts
    measured = "not measured"
    if facts.growth is not None:
        measured = f"{facts.growth:.3g}, sampling error {facts.sampling:.3g}"
    capped = f", trees cut at max_edges {facts.capped}" if facts.capped else ""
    return (
        f"measured: {response.n_problems} problems, {len(response.log_p0)} edges, "
        f"{len(response.leaf_answer)} leaves, mass left out {facts.left_out:.4f}{capped}, "
        f"growth {measured}"
    )


def measure_model(
    config: TrainConfig, how: MeasureConfig, growth: Path | None, report: Report
) -> Response:
    """Measure the model and the problems of a training run's settings.

    Args:
        config: settings of the run that is to be predicted.
        growth: run folder with checkpoints, from which the growth of the gradients is measured.
        report: called with the phase and the share of it that is done.

    Raises:
        UserError: model, problems or the run are wrong.
    """
    config = replace(config, attention="eager", engine="transformers").settled()
    tiny = starting_checkpoint(config.tiny_task, config.tiny_verifies)
    folder = model_folder(config.own_model) if config.own_model else tiny
    policy = load_policy(folder, config.device, config.dtype, config.attention)
    prepare_training(policy.model, config)
    prompts = build_prompts(read_problems(config), config, policy)
    sources = fingerprint(Path(folder), prompts)
    checkpoints = [] if growth is None else _checkpoints(growth, sources)
    by_math = config.answer_check == "math"
    equality = Equality(config.answer_timeout) if by_math else None
    try:
        return measure(
            policy.model,
            prompts.tokens,
            sample=_sampler(policy, config),
            answer_ids=_reader(policy, prompts, equality, config.extract),
            max_tokens=config.max_response_tokens or 1,
            temperature=config.temperature,
            pad=policy.pad_token_id,
            config=how,
            facts={
                "task": prompts.name,
                "model": sources["model"],
                "problems": sources["problems"],
                "problem_ids": [problem.id for problem in prompts.problems],
            },
            checkpoints=[partial(trained_weights, path) for path in checkpoints],
            report=report,
        )
    finally:
        if equality is not None:
            equality.close()


def _sampler(policy: Policy, config: TrainConfig) -> Sampler:
    engine = TransformersEngine(
        policy.model, policy.eos_token_ids, policy.pad_token_id, config.max_rows
    )

    def sample(
        prompts: Sequence[Sequence[int]], n: int, max_tokens: int, top_p: float, seed: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch_generator(seed, Stream.VOTES, 0, device=policy.device)
        sampling = Sampling(max_tokens, config.temperature, top_p)
        rollouts = engine.sample(prompts, n, sampling, generator)
        return rollouts.tokens_PNT, rollouts.lengths_PN

    return sample


def _reader(
    policy: Policy, prompts: PromptSet, equality: Equality | None, extract: Extract
) -> Callable[[int, Sequence[Sequence[int]]], tuple[NDArray[np.int64], int, list[str]]]:
    ids = AnswerIds(prompts.truths, equality)

    def read(
        problem: int, responses: Sequence[Sequence[int]]
    ) -> tuple[NDArray[np.int64], int, list[str]]:
        rows = [list(tokens) for tokens in responses]
        texts = policy.tokenizer.batch_decode(rows, skip_special_tokens=True)
        answers = ids.ids(problem, texts, extract)
        names = [ids.text(problem, answer) for answer in range(ids.n_answers_of(problem))]
        return answers, max(ids.truth_id(problem), -1), names

    return read


def _checkpoints(run: Path, sources: dict[str, object]) -> list[Path]:
    """Some of a run's checkpoints; the run must have started from the same model."""
    before = read_manifest(run).extra.get("sources", {})
    if before.get("model") != sources["model"]:
        raise UserError(
            f"growth: {run}: the run started from another model; give a run of this one"
        )
    paths = sorted(path.parent for path in (run / FOLDER).glob(f"step-*/{INDEX}"))
    if len(paths) < 3:
        raise UserError(
            f"growth: {run}: {len(paths)} checkpoints with weights, 3 are needed; run it with "
            "--checkpoint-every 8 --checkpoint-keep 100"
        )
    spaced = np.linspace(0, len(paths) - 1, min(len(paths), _MOST_CHECKPOINTS)).round()
    return [paths[int(k)] for k in spaced]
