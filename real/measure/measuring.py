"""From a model and its problems to a response file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from lab.base.columns import Ints
from lab.base.errors import UserError
from lab.base.files import check_new_file
from lab.base.roles import roles_of
from lab.base.settings import to_values
from lab.trace.manifest import CHECKPOINTS, read_manifest
from lab.trace.response import Facts, Response, write_response
from real.answers import AnswerIds, Equality
from real.engines.rollouts import Engine, Prompts, Sampling
from real.engines.transformers_engine import TransformersEngine
from real.measure import MeasureSettings
from real.measure.gradients import Edges, Gradients, Growth, Tokens, log_probs, sampling_error
from real.measure.tree import Leaf, MeasuredTree, edge_arrays, grow, merge_answers, whole_responses
from real.model.machine import keep_freed_memory, pick_device, torch_threads
from real.model.policy import Policy, load_policy
from real.model.prepare import choose_trained
from real.problems.problem import PromptSet
from real.problems.prompts import build_prompts
from real.record.checkpoint import checkpoints_in, trained_weights
from real.record.resuming import fingerprint
from real.record.terminal import say
from real.record.trial import check_sampling
from real.settings.config import TrainConfig
from real.settings.resolve import settled_for
from real.settings.seeds import Stream, torch_generator
from real.tiny import model_of, problems_of

GROWTH_NODES, GROWTH_WEIGHTS = 512, 2048
"""Nodes with the likeliest prefixes, and weights, on which the growth is measured."""

_MOST_CHECKPOINTS = 8
"""Checkpoints that growth is measured from, evenly spaced; more add time and little else."""

Report = Callable[[str, float], object]

ReadAnswers = tuple[Ints, int, list[str]]
"""Answer ids of a problem's responses, the truth's (-1 if none gives it), and the text of each."""
Read = Callable[[int, Sequence[Tokens]], ReadAnswers]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model that is measured, with its problems."""

    model: Any
    """A causal language model with eager attention; its trained weights require a gradient."""
    prompts: Prompts
    """(N,) token ids."""
    engine: Engine
    """Samples from the model."""
    sampling: Sampling
    end_tokens: Collection[int]
    read: Read
    seed: int

    def sample(self, prompts: Prompts, n: int, **changes: Any) -> list[list[Tokens]]:
        """(P, n) responses to P prompts, by the `sampling` with changes."""
        generator = torch_generator(self.seed, Stream.VOTES, 0, device=self.model.device)
        drawn = self.engine.sample(prompts, n, replace(self.sampling, **changes), generator)
        rows = zip(drawn.tokens_PNT.tolist(), drawn.lengths_PN.tolist(), strict=True)
        return [[tuple(tokens[:end]) for tokens, end in zip(*row, strict=True)] for row in rows]


def measure_to(
    out: Path, config: TrainConfig, settings: MeasureSettings, growth: Path | None, report: Report
) -> str:
    """Measure model and problems of a run to be predicted; returns the result's size in words.

    `growth` is a run folder with checkpoints, from which the growth of the gradients is measured.
    """
    check_new_file(out)
    if config.stop:
        raise UserError("stop: a measurement cannot stop at texts; leave it out")
    config, policy, prompts, sources = loaded(config)
    say(prompts.notices)
    if unknown := prompts.truths.count(None):
        told = "problems have no reference answer, and count as never right in simulations"
        say([f"{unknown} of {len(prompts)} {told}"])
    check_sampling(policy, prompts.tokens, config)
    checkpoints = [] if growth is None else _checkpoints(growth, sources, config)
    ids = AnswerIds(prompts.truths, Equality() if config.answer_check == "math" else None)

    def read(problem: int, responses: Sequence[Tokens]) -> ReadAnswers:
        texts = policy.tokenizer.batch_decode(list(map(list, responses)), skip_special_tokens=True)
        answers = ids.ids(problem, texts, config.extract)
        names = [ids.text(problem, answer) for answer in range(ids.n_answers_of(problem))]
        return answers, max(ids.truth_id(problem), -1), names

    ends, pad = policy.eos_token_ids, policy.pad_token_id
    subject = Subject(
        model=policy.model,
        prompts=prompts.tokens,
        engine=TransformersEngine(policy.model, ends, pad, config.max_rows),
        sampling=Sampling(config.max_response_tokens or 1, config.temperature),
        end_tokens=ends,
        read=read,
        seed=config.seed,
    )
    named = {**sources, "task": prompts.name, "run": to_values(config), "roles": roles_of(config)}
    named["problem_ids"] = [problem.id for problem in prompts.problems]
    loads = [partial(trained_weights, path) for path in checkpoints]
    with torch_threads(config.threads):
        response = measure(subject, settings, named, loads, report)
    write_response(out, response)
    facts, measured = response.facts, "not measured"
    if facts.growth is not None:
        measured = f"{facts.growth:.3g}, sampling error {facts.sampling:.3g}"
    capped = f", trees cut at max_edges {facts.capped}" if facts.capped else ""
    return (
        f"measured: {response.n_problems} problems, {len(response.log_p0)} edges, "
        f"{len(response.leaf_answer)} leaves, mass left out {facts.left_out:.4f}{capped}, "
        f"growth {measured}"
    )


def loaded(config: TrainConfig) -> tuple[TrainConfig, Policy, PromptSet, dict[str, Any]]:
    """Return settings as a run has them, model and prompts to be measured, and `fingerprint`."""
    config = settled_for(config, pick_device(config.device).type)[0]
    folder = model_of(config)
    policy = load_policy(folder, config.device, "float32", "eager")
    keep_freed_memory(policy.device)
    # Of how a run trains nothing else matters to gradients.
    choose_trained(policy.model, config, config.seed)
    parts = (False, True) if config.n_held_out else (False,)  # as a run has them
    prompts, *others = (build_prompts(problems_of(config, part), config, policy) for part in parts)
    return config, policy, prompts, fingerprint(folder, [prompts, *others])


def _checkpoints(run: Path, sources: dict[str, object], config: TrainConfig) -> list[Path]:
    before, now = read_manifest(run), to_values(config)
    named = ("lora_rank", "lora_alpha", "lora_targets", "seed")  # which adapters are drawn by
    has_adapters = config.lora_rank or before.config.get("lora_rank")
    same = not has_adapters or all(now[name] == before.config.get(name) for name in named)
    if before.extra.get("sources", {}).get("model") != sources["model"] or not same:
        raise UserError(
            f"growth: {run}: the run started from another model or other adapters; give a run of "
            "this one"
        )
    paths = checkpoints_in(run / CHECKPOINTS)[::-1]
    if len(paths) < 3:
        raise UserError(
            f"growth: {run}: {len(paths)} checkpoints with weights, 3 are needed; run it with "
            "--checkpoint-every 8 --checkpoint-keep 100"
        )
    spaced = np.linspace(0, len(paths) - 1, min(len(paths), _MOST_CHECKPOINTS)).round()
    return [paths[int(k)] for k in spaced]


def measure(
    subject: Subject,
    config: MeasureSettings,
    facts: dict[str, Any],
    checkpoints: Sequence[Callable[[], Mapping[str, Any]]] = (),
    report: Report = lambda phase, done: None,
) -> Response:
    """Measure the token tree of every problem and the gradients of its edges.

    Args:
        facts: the fields of `Facts` that say what model and problems these are.
        checkpoints: load weights of a run from this model, by which the growth is measured.
    """
    if checkpoints and config.unit != "token":
        raise UserError(f"growth: can be measured with unit = token, not {config.unit}")
    trees = _sample_trees(subject, config, facts["problem_ids"], report)
    read = [subject.read(n, [leaf.tokens for leaf in tree.leaves]) for n, tree in enumerate(trees)]
    arrays, contexts, tokens = edge_arrays(trees, subject.prompts, [ids_L for ids_L, _, _ in read])
    if not tokens:
        raise UserError(
            "measure: each problem has a single response, which training cannot change; raise "
            "responses or temperature"
        )
    gradients = Gradients(subject.model, subject.sampling.temperature)
    n_weights = gradients.n_weights
    gradients.check_memory(len(tokens), min(config.weights, n_weights))
    rng = np.random.default_rng([subject.seed, 1])
    coordinates, scale = choose_weights(gradients, contexts, tokens, config.weights, rng)
    along = [load() for load in checkpoints]
    changes = [gradients.change(weights) for weights in along]
    if along and not any(bool(change.any()) for change in changes):
        raise UserError("growth: the run's checkpoints have the weights that it started from")
    features, norm2, moved_KE = gradients(
        contexts, tokens, coordinates, changes, partial(report, "gradients")
    )
    if not np.abs(features).max(initial=0.0) <= float(np.finfo(np.float16).max):  # also of NaN
        raise UserError("measure: a gradient is not finite; is the model sound?")
    if config.unit == "answer":
        arrays, features, norm2 = merge_answers(arrays, features, scale)
    response = Response(
        facts=Facts(
            **facts,
            answers=[texts for _, _, texts in read],
            temperature=subject.sampling.temperature,
            n_weights=n_weights,
            unit=config.unit,
            settings={**config.numbers, "seed": float(subject.seed)},
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
        few = slice(GROWTH_WEIGHTS)
        growth = Growth(gradients, _likeliest_edges(trees, subject), coordinates[few], scale[few])
        response.facts.growth = growth.slope(along, changes, partial(report, "growth"))
        used = slice(response.n_used)
        change_KD = np.stack([change.cpu().numpy()[coordinates[used]] for change in changes])
        estimated_KE = ((response.used_scale(used) * change_KD) @ features[:, used].T).astype(float)
        response.facts.sampling = sampling_error(moved_KE, estimated_KE, norm2)
    return response


def _sample_trees(
    subject: Subject, config: MeasureSettings, problem_ids: Sequence[str], report: Report
) -> list[MeasuredTree]:
    """Return the tree of every problem, whose leaves are whole responses."""
    report("sample", 0.0)
    trees: list[MeasuredTree] = []
    drawn = subject.sample(subject.prompts, config.responses)
    for prompt, responses in zip(subject.prompts, drawn, strict=True):
        if config.unit == "token":
            distinct = list(dict.fromkeys(responses))
            log_p = log_probs(subject.model, prompt, distinct, subject.sampling.temperature)
            trees.append(grow(distinct, log_p, config))
        else:
            trees.append(whole_responses(responses))
        report("sample", len(trees) / len(subject.prompts))
    for problem_id, tree in zip(problem_ids, trees, strict=True):
        if not tree.leaves:
            raise UserError(
                f"min_p = {config.min_p:g}: problem {problem_id} has no response that likely, or "
                "all have more than max_edges tokens; set them, or unit = response"
            )
    report("continue", 0.0)
    # Leaves of unseen tokens are continued greedily, all of one length at once.
    longest = subject.sampling.max_tokens
    by_length: dict[int, list[tuple[Sequence[int], Leaf]]] = defaultdict(list)
    for prompt, tree in zip(subject.prompts, trees, strict=True):
        for leaf in tree.leaves:
            ended = leaf.tokens[-1] in subject.end_tokens
            if leaf.unseen and not ended and len(leaf.tokens) < longest:
                by_length[len(leaf.tokens)].append((prompt, leaf))
    for length, leaves in sorted(by_length.items()):
        contexts = [[*prompt, *leaf.tokens] for prompt, leaf in leaves]
        greedy = {"max_tokens": longest - length, "top_p": 1e-9}  # the likeliest token alone
        more = subject.sample(contexts, 1, **greedy)
        for (_, leaf), (tokens,) in zip(leaves, more, strict=True):
            leaf.tokens += tokens
    return trees


def _likeliest_edges(trees: Sequence[MeasuredTree], subject: Subject) -> Edges:
    """Edges on which growth is measured: of the nodes with the likeliest prefixes."""
    nodes = [
        (tree.nodes[node].log_p, n, node)
        for n, tree in enumerate(trees)
        for node in tree.moving_nodes()
    ]
    rows: list[tuple[list[int], int, int]] = []
    for place, (_, n, node) in enumerate(sorted(nodes, reverse=True)[:GROWTH_NODES]):
        context = [*subject.prompts[n], *trees[n].nodes[node].prefix]
        rows += [(context, token, place) for token in trees[n].nodes[node].edges]
    return [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]


_SCALE_EDGES, _UNIFORM = 256, 0.1
"""Edges from which the size of the gradient on every weight is estimated, and the share of the
chance of being drawn that is the same for all weights."""


def choose_weights(
    gradients: Gradients, contexts: Prompts, tokens: Sequence[Tokens], n: int, rng: Generator
) -> tuple[Ints, NDArray[np.float32]]:
    """Draw weights, in proportion to their gradients, and the number that each stands for."""
    d = gradients.n_weights
    if n >= d:
        return rng.permutation(d), np.ones(d, np.float32)
    few = rng.permutation(len(tokens))[:_SCALE_EDGES]
    size_d = gradients.sizes([contexts[e] for e in few], [tokens[e] for e in few])
    chance_d = np.minimum(1.0, n * (_UNIFORM / d + (1 - _UNIFORM) * size_d / size_d.sum()))
    for _ in range(50):  # what is cut at 1 goes to the other weights
        chance_d = np.minimum(1.0, chance_d * n / chance_d.sum())
    # Equally spaced points on the line of all chances draw each weight with its own chance.
    order = rng.permutation(d)
    places = np.searchsorted(np.cumsum(chance_d[order]), np.arange(n) + rng.random())
    drawn = rng.permutation(order[places[places < d]])
    return drawn, (1 / chance_d[drawn]).astype(np.float32)
