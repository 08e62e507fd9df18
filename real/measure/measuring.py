"""From a model and its problems to a response file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lab.base.errors import UserError
from lab.base.files import check_new_file
from lab.base.roles import roles_of
from lab.base.settings import to_values
from lab.trace.manifest import read_manifest
from lab.trace.response import Facts, Response, write_response
from real.answers import AnswerIds, Equality
from real.engines.rollouts import Sampling
from real.engines.transformers_engine import TransformersEngine
from real.measure import MeasureSettings
from real.measure.gradients import (
    Edges,
    Gradients,
    Growth,
    Tokens,
    log_probs,
    sampling_error,
)
from real.measure.tree import Leaf, MeasuredTree, edge_arrays, grow, merge_answers, whole_responses
from real.model.machine import keep_freed_memory, torch_threads
from real.model.policy import load_policy
from real.model.prepare import prepare_training
from real.problems.prompts import build_prompts
from real.record.checkpoint import FOLDER, INDEX, trained_weights
from real.record.resuming import fingerprint
from real.settings.config import TrainConfig
from real.settings.seeds import Stream, torch_generator
from real.tiny import model_of, problems_of

_GREEDY = 1e-9
"""Nucleus mass that leaves the likeliest token alone."""

GROWTH_NODES, GROWTH_WEIGHTS = 512, 2048
"""Nodes with the likeliest prefixes, and weights, on which the growth is measured."""

_MOST_CHECKPOINTS = 8
"""Checkpoints that growth is measured from, evenly spaced; more add time and little else."""

Report = Callable[[str, float], object]

Sample = Callable[
    [Sequence[Sequence[int]], int, int, float, int], tuple[torch.Tensor, torch.Tensor]
]
"""Prompts, n, longest response, nucleus mass and seed to tokens (P, n, T) and lengths (P, n)."""

Read = Callable[[int, Sequence[Tokens]], tuple[NDArray[np.int64], int, list[str]]]
"""A problem and its responses to answer ids, the truth's id (-1 if no response gives it), and the
text of each id."""


def measure_to(
    out: Path, config: TrainConfig, how: MeasureSettings, growth: Path | None, report: Report
) -> str:
    """Measure model and problems of a run to be predicted; returns the result's size in words.

    `growth` is a run folder with checkpoints, from which the growth of the gradients is measured.
    """
    check_new_file(out)
    asked = config.settled()
    config = replace(config, attention="eager", engine="transformers", dtype="float32").settled()
    folder = model_of(config)
    policy = load_policy(folder, config.device, config.dtype, config.attention)
    keep_freed_memory(policy.device)
    prepare_training(policy.model, config, config.seed)
    prompts = build_prompts(problems_of(config), config, policy)
    sources = fingerprint(folder, [prompts])
    checkpoints = [] if growth is None else _checkpoints(growth, sources)
    equality = Equality() if config.answer_check == "math" else None
    ids = AnswerIds(prompts.truths, equality)
    engine = TransformersEngine(
        policy.model, policy.eos_token_ids, policy.pad_token_id, config.max_rows
    )

    def sample(
        asked: Sequence[Sequence[int]], n: int, max_tokens: int, top_p: float, seed: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch_generator(seed, Stream.VOTES, 0, device=policy.device)
        sampling = Sampling(max_tokens, config.temperature, top_p)
        rollouts = engine.sample(asked, n, sampling, generator)
        return rollouts.tokens_PNT, rollouts.lengths_PN

    def read(problem: int, responses: Sequence[Tokens]) -> tuple[NDArray[np.int64], int, list[str]]:
        rows = [list(tokens) for tokens in responses]
        texts = policy.tokenizer.batch_decode(rows, skip_special_tokens=True)
        answers = ids.ids(problem, texts, config.extract)
        names = [ids.text(problem, answer) for answer in range(ids.n_answers_of(problem))]
        return answers, max(ids.truth_id(problem), -1), names

    with torch_threads(config.threads):
        response = measure(
            policy.model,
            prompts.tokens,
            sample=sample,
            answer_ids=read,
            max_tokens=config.max_response_tokens or 1,
            temperature=config.temperature,
            pad=policy.pad_token_id,
            config=how,
            seed=config.seed,
            facts={
                "task": prompts.name,
                "model": sources["model"],
                "problems": sources["problems"],
                "problem_ids": [problem.id for problem in prompts.problems],
                "run": to_values(asked),
                "roles": roles_of(asked),
            },
            checkpoints=[partial(trained_weights, path) for path in checkpoints],
            report=report,
        )
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


def _checkpoints(run: Path, sources: dict[str, object]) -> list[Path]:
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


def measure(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    sample: Sample,
    answer_ids: Read,
    max_tokens: int,
    temperature: float,
    pad: int,
    config: MeasureSettings,
    seed: int,
    facts: dict[str, Any],
    checkpoints: Sequence[Callable[[], Mapping[str, torch.Tensor]]] = (),
    report: Report = lambda phase, done: None,
) -> Response:
    """Measure the token tree of every problem and the gradients of its edges.

    Args:
        model: a causal language model with eager attention; its trained weights require a gradient.
        prompts: (N,) token ids.
        pad: any token id.
        facts: the fields of `Facts` that say what model and problems these are.
        checkpoints: load weights of a run from this model, by which the growth is measured.
    """
    if checkpoints and config.unit != "token":
        raise UserError(f"growth: can be measured with unit = token, not {config.unit}")
    report("sample", 0.0)
    tokens_PNT, lengths_PN = sample(prompts, config.responses, max_tokens, 1.0, seed)
    trees: list[MeasuredTree] = []
    for n, prompt in enumerate(prompts):
        rows = zip(tokens_PNT[n].tolist(), lengths_PN[n].tolist(), strict=True)
        responses = [tuple(row[:length]) for row, length in rows]
        if config.unit == "token":
            distinct = list(dict.fromkeys(responses))
            log_p = log_probs(model, prompt, distinct, temperature, pad)
            trees.append(grow(distinct, log_p, config.min_p, config.min_novel, config.max_edges))
        else:
            trees.append(whole_responses(responses))
        report("sample", (n + 1) / len(prompts))
    empty = [n for n, tree in enumerate(trees) if not tree.leaves]
    if empty:
        raise UserError(
            f"min_p = {config.min_p:g}: problem {facts['problem_ids'][empty[0]]} has no response "
            "that likely, or all have more than max_edges tokens; set them, or unit = response"
        )
    report("continue", 0.0)
    _continue(trees, prompts, sample, max_tokens, seed)
    read = [answer_ids(n, [leaf.tokens for leaf in tree.leaves]) for n, tree in enumerate(trees)]
    gradients = Gradients(model, temperature)
    n_weights = gradients.n_weights
    rng = np.random.default_rng([seed, 1])
    arrays, contexts, tokens = edge_arrays(trees, prompts, read)
    gradients.check_memory(len(tokens), min(config.weights, n_weights))
    coordinates, scale = choose_weights(gradients, contexts, tokens, config.weights, rng)
    done = 0

    def count(n: int) -> None:
        nonlocal done
        done += n
        report("gradients", done / len(tokens))

    along = [load() for load in checkpoints]
    changes = [gradients.change(weights) for weights in along]
    distances = [float(change.norm()) for change in changes]
    if along and not any(distances):
        raise UserError("growth: the run's checkpoints have the weights that it started from")
    features, norm2, moved_KE = gradients(contexts, tokens, coordinates, changes, count)
    limit = float(np.finfo(np.float16).max)
    if not np.isfinite(features).all() or np.abs(features).max(initial=0.0) > limit:
        raise UserError("measure: a gradient is not finite; is the model sound?")
    if config.unit == "answer":
        arrays, features, norm2 = merge_answers(arrays, features, scale)
    names = [field.name for field in fields(MeasureSettings) if field.name != "unit"]
    numbers = {name: float(getattr(config, name)) for name in names}
    response = Response(
        facts=Facts(
            **facts,
            answers=[texts for _, _, texts in read],
            temperature=temperature,
            n_weights=n_weights,
            unit=config.unit,
            settings={**numbers, "seed": float(seed)},
            left_out=float(np.mean([tree.left_out for tree in trees])),
            capped=sum(tree.capped for tree in trees),
        ),
        truth_N=np.array([truth for _, truth, _ in read], np.int64),
        # All weights of a small model are kept exactly; a sample has errors of its own.
        features=features if len(coordinates) == n_weights else features.astype(np.float16),
        scale=scale,
        start=gradients.start(coordinates),
        norm2=norm2,
        **arrays,
    )
    if along:
        compared = _compared(trees, prompts)
        few = (coordinates[:GROWTH_WEIGHTS], scale[:GROWTH_WEIGHTS])
        start, points = Growth(model, compared, temperature, *few), []
        for distance, weights in zip(distances, along, strict=True):
            points.append((distance, start.at(weights)))
            report("growth", len(points) / len(along))
        # The slope through the origin.
        distance_K, change_K = np.array(points, float).T
        response.facts.growth = float(distance_K @ change_K / (distance_K @ distance_K))
        used = slice(response.n_used)
        change_KD = np.stack([change.cpu().numpy()[coordinates[used]] for change in changes])
        estimated_KE = ((response.used_scale(used) * change_KD) @ features[:, used].T).astype(float)
        response.facts.sampling = sampling_error(moved_KE, estimated_KE, norm2)
    return response


def _continue(
    trees: Sequence[MeasuredTree],
    prompts: Sequence[Sequence[int]],
    sample: Sample,
    max_tokens: int,
    seed: int,
) -> None:
    """Continue the leaves of unseen tokens greedily, all of one length at once."""
    by_length: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for n, tree in enumerate(trees):
        for place, leaf in enumerate(tree.leaves):
            if leaf.unseen and len(leaf.tokens) < max_tokens:
                by_length[len(leaf.tokens)].append((n, place))
    for length, places in sorted(by_length.items()):
        contexts = [[*prompts[n], *trees[n].leaves[place].tokens] for n, place in places]
        more_P1T, lengths_P1 = sample(contexts, 1, max_tokens - length, _GREEDY, seed)
        rows = zip(places, more_P1T[:, 0].tolist(), lengths_P1[:, 0].tolist(), strict=True)
        for (n, place), tokens, n_tokens in rows:
            leaf = trees[n].leaves[place]
            whole = (*leaf.tokens, *tokens[:n_tokens])
            trees[n].leaves[place] = Leaf(whole, leaf.edge, True)


def _compared(trees: Sequence[MeasuredTree], prompts: Sequence[Sequence[int]]) -> Edges:
    """Edges on which growth is measured: of the nodes with the likeliest prefixes."""
    nodes = [
        (tree.nodes[node].log_p, n, node)
        for n, tree in enumerate(trees)
        for node in tree.moving_nodes()
    ]
    rows: list[tuple[list[int], int, int]] = []
    for place, (_, n, node) in enumerate(sorted(nodes, reverse=True)[:GROWTH_NODES]):
        context = [*prompts[n], *trees[n].nodes[node].prefix]
        rows += [(context, token, place) for token in trees[n].nodes[node].edges]
    return [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]


_ROUNDS = 50

_SCALE_EDGES, _UNIFORM = 256, 0.1
"""Edges from which the size of the gradient on every weight is estimated, and the share of the
chance of being drawn that is the same for all weights."""


def choose_weights(
    gradients: Gradients,
    contexts: Sequence[Sequence[int]],
    tokens: Sequence[Tokens],
    n: int,
    rng: np.random.Generator,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Draw weights, in proportion to their gradients, and the number that each stands for."""
    d = gradients.n_weights
    if n >= d:
        return rng.permutation(d), np.ones(d, np.float32)
    few = rng.permutation(len(tokens))[:_SCALE_EDGES]
    size_d = gradients.sizes([contexts[e] for e in few], [tokens[e] for e in few])
    share_d = _UNIFORM / d + (1 - _UNIFORM) * size_d / size_d.sum()
    chance_d = np.minimum(1.0, n * share_d)
    for _ in range(_ROUNDS):  # what is cut at 1 goes to the other weights
        chance_d = np.minimum(1.0, chance_d * n / chance_d.sum())
    # Equally spaced points on the line of all chances draw each weight with its own chance.
    order = rng.permutation(d)
    places = np.searchsorted(np.cumsum(chance_d[order]), np.arange(n) + rng.random())
    drawn = rng.permutation(order[places[places < d]])
    return drawn, (1 / chance_d[drawn]).astype(np.float32)
