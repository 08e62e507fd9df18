"""From a model and its problems to a response file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from lab.base.errors import UserError
from lab.trace.response import Facts, Response
from real.measure.gradients import Gradients, log_probs
from real.measure.growth import Edges, Growth, sampling_error, slope
from real.measure.tree import Leaf, Tokens, Tree, distinct_responses, grow, whole_responses

_GREEDY = 1e-9
"""Nucleus mass that leaves the likeliest token alone."""

_GROWTH_NODES, _GROWTH_WEIGHTS = 512, 2048
"""Nodes with the likeliest prefixes, and weights, on which the growth is measured."""

Unit = Literal["token", "response", "answer"]

Report = Callable[[str, float], object]
"""Called with the phase and the share of it that is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureConfig:
    """Settings of a measurement."""

    responses: int = 256
    """Sampled responses per problem, from which the tree is made."""
    min_p: float = 1e-3
    """Sampled responses that the model gives with less probability are left out."""
    min_novel: float = 1e-5
    """Tokens that no sampled response has are left out if their leaf has less probability."""
    weights: int = 8192
    """D, weights drawn at random on which gradients are kept; all if there are fewer."""
    max_edges: int = 4096
    """Most edges of a problem's token tree; the unlikeliest responses and tokens are left out."""
    unit: Unit = "token"
    """Of which gradients are measured: of tokens, or for larger models of whole responses or of
    answers (means over their responses), each as likely as it is frequent among the samples."""
    seed: int = 0
    """Fixes the sampled responses and the drawn weights."""

    def __post_init__(self) -> None:
        """Check the bounds.

        Raises:
            UserError: a setting is out of bounds; the message names it and its bound.
        """
        for name in ("responses", "weights", "max_edges"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} = {getattr(self, name)}: must be at least 1")
        for name in ("min_p", "min_novel"):
            if not 0 < getattr(self, name) < 1:
                raise UserError(f"{name} = {getattr(self, name)}: must be in (0, 1)")


class Sampler(Protocol):
    """Samples n responses per prompt; `real.engines` has such."""

    def __call__(
        self, prompts: Sequence[Sequence[int]], n: int, max_tokens: int, top_p: float, seed: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens (P, n, T) and lengths (P, n)."""
        ...


def measure(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    sample: Sampler,
    answer_ids: Callable[[int, Sequence[Sequence[int]]], tuple[NDArray[np.int64], int, list[str]]],
    max_tokens: int,
    temperature: float,
    pad: int,
    config: MeasureConfig,
    facts: dict[str, Any],
    checkpoints: Sequence[Callable[[], Mapping[str, torch.Tensor]]] = (),
    report: Report = lambda phase, done: None,
) -> Response:
    """Measure the token tree of every problem and the gradients of its edges.

    Args:
        model: a causal language model with eager attention; its trained weights require a gradient.
        prompts: (N,) token ids.
        sample: samples responses at `temperature`.
        answer_ids: of a problem and its responses: answer ids, the truth's id (-1 if no response
            gives it), and the text of each id.
        max_tokens: longest response.
        pad: any token id.
        facts: the fields of `Facts` that say what model and problems these are.
        checkpoints: load weights of a run from this model, by which the growth is measured.
        report: progress.

    Raises:
        UserError: no response of a problem is likely enough to be in its tree.
    """
    if checkpoints and config.unit != "token":
        raise UserError(f"growth: can be measured with unit = token, not {config.unit}")
    report("sample", 0.0)
    tokens_PNT, lengths_PN = sample(prompts, config.responses, max_tokens, 1.0, config.seed)
    trees: list[Tree] = []
    for n, prompt in enumerate(prompts):
        trees.append(_tree(model, prompt, tokens_PNT[n], lengths_PN[n], temperature, pad, config))
        report("sample", (n + 1) / len(prompts))
    empty = [n for n, tree in enumerate(trees) if not tree.leaves]
    if empty:
        raise UserError(
            f"min_p = {config.min_p:g}: problem {facts['problem_ids'][empty[0]]} has no response "
            "that likely, or all have more than max_edges tokens; set them, or unit = response"
        )
    report("continue", 0.0)
    _continue(trees, prompts, sample, max_tokens, config.seed)
    read = [answer_ids(n, [leaf.tokens for leaf in tree.leaves]) for n, tree in enumerate(trees)]
    gradients = Gradients(model, temperature)
    n_weights = gradients.n_weights
    rng = np.random.default_rng([config.seed, 1])
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
    response = Response(
        facts=Facts(
            **facts,
            answers=[texts for _, _, texts in read],
            temperature=temperature,
            n_weights=n_weights,
            unit=config.unit,
            settings={k: float(v) for k, v in asdict(config).items() if k != "unit"},
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
        few = (coordinates[:_GROWTH_WEIGHTS], scale[:_GROWTH_WEIGHTS])
        response.facts.growth = _growth(
            model, compared, along, distances, temperature, *few, report
        )
        used = slice(response.n_used)
        change_KD = np.stack([change.cpu().numpy()[coordinates[used]] for change in changes])
        estimated_KE = ((response.used_scale(used) * change_KD) @ features[:, used].T).astype(float)
        response.facts.sampling = sampling_error(moved_KE, estimated_KE, norm2)
    return response


def _tree(
    model: Any,
    prompt: Sequence[int],
    tokens_VT: torch.Tensor,
    lengths_V: torch.Tensor,
    temperature: float,
    pad: int,
    config: MeasureConfig,
) -> Tree:
    if config.unit != "token":
        return whole_responses(tokens_VT, lengths_V)
    distinct = distinct_responses(tokens_VT, lengths_V)
    log_p = log_probs(model, prompt, distinct, temperature, pad)
    return grow(distinct, log_p, config.min_p, config.min_novel, config.max_edges)


def _continue(
    trees: Sequence[Tree],
    prompts: Sequence[Sequence[int]],
    sample: Sampler,
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


def _compared(trees: Sequence[Tree], prompts: Sequence[Sequence[int]]) -> Edges:
    """Edges on which growth is measured: of the nodes with the likeliest prefixes."""
    nodes = [
        (tree.nodes[node].log_p, n, node)
        for n, tree in enumerate(trees)
        for node in tree.moving_nodes()
    ]
    rows: list[tuple[list[int], int, int]] = []
    for place, (_, n, node) in enumerate(sorted(nodes, reverse=True)[:_GROWTH_NODES]):
        context = [*prompts[n], *trees[n].nodes[node].prefix]
        rows += [(context, token, place) for token in trees[n].nodes[node].edges]
    return Edges(*(list(column) for column in zip(*rows, strict=True)))


def _growth(
    model: Any,
    compared: Edges,
    along: Sequence[Mapping[str, torch.Tensor]],
    distances: Sequence[float],
    temperature: float,
    coordinates: NDArray[np.int64],
    scale: NDArray[np.float32],
    report: Report,
) -> float:
    """Growth of the gradients along the weights of a run, at given distances from the start."""
    growth = Growth(model, compared, temperature, coordinates, scale)
    points: list[tuple[float, float]] = []
    for distance, weights in zip(distances, along, strict=True):
        points.append((distance, growth.at(weights)))
        report("growth", len(points) / len(along))
    return slope(points)


def edge_arrays(
    trees: Sequence[Tree],
    prompts: Sequence[Sequence[int]],
    read: Sequence[tuple[NDArray[np.int64], int, list[str]]],
) -> tuple[dict[str, Any], list[list[int]], list[Tokens]]:
    """The arrays of a response file without features, and context and tokens of every edge.

    Args:
        read: of the leaves of each problem: answer ids, the truth's id, the text of each id.
    """
    names = ("edge_node", "log_p0", "leaf_answer", "leaf_length", "leaf_unseen", "path_edge")
    rows: dict[str, list[Any]] = {name: [] for name in names}
    starts: dict[str, list[int]] = {"edge_start": [0], "leaf_start": [0], "path_start": [0]}
    contexts: list[list[int]] = []
    tokens: list[Tokens] = []
    for tree, prompt, (ids, _, _) in zip(trees, prompts, read, strict=True):
        order = {node: place for place, node in enumerate(tree.moving_nodes())}
        kept = sorted(
            (e for e, edge in enumerate(tree.edges) if edge.node in order),
            key=lambda e: order[tree.edges[e].node],
        )
        place_of = {edge: place for place, edge in enumerate(kept)}
        for e in kept:
            edge = tree.edges[e]
            rows["edge_node"].append(order[edge.node])
            rows["log_p0"].append(edge.log_p0)
            contexts.append([*prompt, *tree.nodes[edge.node].prefix])
            tokens.append(edge.tokens)
        for leaf, answer in zip(tree.leaves, ids, strict=True):
            rows["leaf_answer"].append(int(answer))
            rows["leaf_length"].append(len(leaf.tokens))
            rows["leaf_unseen"].append(leaf.unseen)
            rows["path_edge"] += [place_of[e] for e in tree.path(leaf) if e in place_of]
            starts["path_start"].append(len(rows["path_edge"]))
        starts["edge_start"].append(len(rows["edge_node"]))
        starts["leaf_start"].append(len(rows["leaf_answer"]))
    kinds = {"log_p0": np.float64, "leaf_unseen": np.bool_}
    arrays = {name: np.array(values, kinds.get(name, np.int64)) for name, values in rows.items()}
    arrays |= {name: np.array(values, np.int64) for name, values in starts.items()}
    return arrays, contexts, tokens


def merge_answers(
    arrays: dict[str, Any], features: NDArray[np.float32], scale: NDArray[np.float32]
) -> tuple[dict[str, Any], NDArray[np.float32], NDArray[np.float64]]:
    """Join the responses of each problem that give the same answer.

    Args:
        arrays: of trees whose edges are responses.
        features: (E, D) of the responses.
        scale: (D,) number of weights that each column stands for.

    Returns:
        The arrays, features and squared norms of trees whose edges are answers. The gradient of an
        answer's log-probability is the mean of those of its responses.
    """
    problem_L = np.repeat(np.arange(len(arrays["leaf_start"]) - 1), np.diff(arrays["leaf_start"]))
    keys = np.stack([problem_L, arrays["leaf_answer"]], 1)
    classes, class_L = np.unique(keys, axis=0, return_inverse=True)
    class_L, n = class_L.reshape(-1), len(classes)
    # A problem's only response has no edge.
    edge_L = np.diff(arrays["path_start"]) > 0
    p_L = np.ones(len(problem_L))
    p_L[edge_L] = np.exp(arrays["log_p0"])
    p_C = np.bincount(class_L, p_L, n)
    share_L = p_L / p_C[class_L]
    merged = np.zeros((n, features.shape[1]), np.float32)
    np.add.at(merged, class_L[edge_L], features * share_L[edge_L, None].astype(np.float32))
    start = np.searchsorted(classes[:, 0], np.arange(len(arrays["leaf_start"])))
    joined = {
        "edge_start": start,
        "edge_node": np.zeros(n, np.int64),
        "log_p0": np.log(p_C),
        "leaf_start": start,
        "leaf_answer": classes[:, 1],
        "leaf_length": np.bincount(class_L, share_L * arrays["leaf_length"], n).round().astype(int),
        "leaf_unseen": np.zeros(n, np.bool_),
        "path_start": np.arange(n + 1),
        "path_edge": np.arange(n) - start[classes[:, 0]],
    }
    return joined, merged, (merged.astype(float) ** 2) @ scale.astype(float)


_ROUNDS = 50
"""Rounds in which the chances reach their sum."""

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
    """Draw weights, in random order, and the number of weights that each stands for.

    Adam moves all weights by about the same, so the sum over weights has the smallest variance
    if each is drawn with a chance in proportion to the size of the gradients on it.
    """
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
