"""The tree of a model's responses: of sampled tokens and their variations, or of whole responses.

It ends in the arrays of a response file, see `lab.trace.response`. Definition: docs/method.md,
section 15.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lab.base.columns import Floats, Ints
from real.engines.rollouts import Prompts
from real.measure import MeasureSettings
from real.measure.gradients import Singles, Tokens

CERTAIN = 0.9995
"""A node at which one token is likelier than this, and no other is in the tree, moves nothing."""


@dataclass(slots=True)
class Node:
    """One prefix of a response."""

    prefix: Tokens
    log_p: float
    path: tuple[int, ...]
    """Edges that lead here."""
    edges: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TokenEdge:
    """One token after one prefix, or a whole response."""

    node: int
    tokens: Tokens
    log_p0: float


@dataclass(slots=True)
class Leaf:
    """A whole response."""

    tokens: Tokens
    path: tuple[int, ...]
    """Edges from the root."""
    unseen: bool
    """Its last edge's token was never sampled; `tokens` continue it greedily."""


@dataclass(slots=True)
class MeasuredTree:
    """The tree of one problem."""

    nodes: list[Node]
    edges: list[TokenEdge]
    leaves: list[Leaf]
    left_out: float = 0.0
    """Probability of sampled responses that the tree does not hold, by the model."""
    capped: bool = False

    def moving_nodes(self) -> list[int]:
        """Nodes whose distribution an update can change noticeably."""
        node_E = np.array([edge.node for edge in self.edges], np.int64)
        top = np.full(len(self.nodes), -np.inf)
        np.maximum.at(top, node_E, [edge.log_p0 for edge in self.edges])
        moving = (top < np.log(CERTAIN)) | (np.bincount(node_E, minlength=len(top)) > 1)
        return np.flatnonzero(moving).tolist()


def grow(
    responses: Sequence[Tokens], log_p_RTA: Sequence[Singles], config: MeasureSettings
) -> MeasuredTree:
    """The token tree of one problem; leaves of unseen tokens are not yet continued.

    `log_p_RTA` holds for each distinct response (T, A) log-probabilities of every token after every
    prefix. At `max_edges` the tree ends; the likeliest responses, then tokens, come first.
    """
    tree, max_edges = MeasuredTree([], [], []), config.max_edges
    least, least_novel = np.log([config.min_p, config.min_novel])
    # Prefix to its node, and to the log-probs of all tokens behind it.
    known: dict[Tokens, tuple[int, Singles]] = {}
    sampled = [
        (float(sum(log_p_TA[t, token] for t, token in enumerate(tokens))), tokens, log_p_TA)
        for tokens, log_p_TA in zip(responses, log_p_RTA, strict=True)
    ]
    for total, tokens, log_p_TA in sorted(sampled, key=lambda one: -one[0]):
        full, likely = len(tree.edges) + len(tokens) > max_edges, bool(total >= least)
        if full or not likely:
            tree.capped |= full and likely
            tree.left_out += float(np.exp(total))
            continue
        path, log_p = (), 0.0
        for t, token in enumerate(tokens):
            prefix = tokens[:t]
            if prefix not in known:
                known[prefix] = len(tree.nodes), log_p_TA[t]
                tree.nodes.append(Node(prefix, log_p, path))
            edge = _edge(tree, known[prefix][0], token, float(log_p_TA[t, token]))
            path, log_p = (*path, edge), log_p + tree.edges[edge].log_p0
        tree.leaves.append(Leaf(tokens, path, False))
    unseen = [
        (tree.nodes[node].log_p + float(log_p_A[token]), node, token, float(log_p_A[token]))
        for node, log_p_A in known.values()
        for token in np.flatnonzero(tree.nodes[node].log_p + log_p_A > least_novel).tolist()
        if token not in tree.nodes[node].edges
    ]
    for _, node, token, log_p in sorted(unseen, reverse=True)[: max_edges - len(tree.edges)]:
        above, edge = tree.nodes[node], _edge(tree, node, token, log_p)
        tree.leaves.append(Leaf((*above.prefix, token), (*above.path, edge), True))
    tree.capped |= len(tree.edges) == max_edges
    return tree


def whole_responses(responses: Sequence[Tokens]) -> MeasuredTree:
    """The tree of one problem whose edges are sampled responses, as likely as they are frequent."""
    counts, total = Counter(responses), len(responses)
    edges = [TokenEdge(0, tokens, float(np.log(n / total))) for tokens, n in counts.items()]
    leaves = [Leaf(tokens, (e,), False) for e, tokens in enumerate(counts)]
    return MeasuredTree([Node((), 0.0, ())], edges, leaves)


def _edge(tree: MeasuredTree, node: int, token: int, log_p: float) -> int:
    """Return a token's edge, which is made where it is new."""
    edges = tree.nodes[node].edges
    if token not in edges:
        edges[token] = len(tree.edges)
        tree.edges.append(TokenEdge(node, (token,), log_p))
    return edges[token]


def edge_arrays(
    trees: Sequence[MeasuredTree], prompts: Prompts, ids_NL: Sequence[Ints]
) -> tuple[dict[str, Any], list[list[int]], list[Tokens]]:
    """The arrays of a response file without features, and context and tokens of every edge."""
    starts = {name: [0] for name in ("edge_start", "leaf_start", "path_start")}
    rows: dict[str, list[Any]] = defaultdict(list, starts)
    contexts: list[list[int]] = []
    tokens: list[Tokens] = []
    for tree, prompt, ids_L in zip(trees, prompts, ids_NL, strict=True):
        order = {node: place for place, node in enumerate(tree.moving_nodes())}
        moving = (e for e, edge in enumerate(tree.edges) if edge.node in order)
        kept = sorted(moving, key=lambda e: tree.edges[e].node)
        place_of = {edge: place for place, edge in enumerate(kept)}
        for edge in (tree.edges[e] for e in kept):
            rows["edge_node"].append(order[edge.node])
            rows["log_p0"].append(edge.log_p0)
            contexts.append([*prompt, *tree.nodes[edge.node].prefix])
            tokens.append(edge.tokens)
        for leaf in tree.leaves:
            rows["leaf_length"].append(len(leaf.tokens))
            rows["leaf_unseen"].append(leaf.unseen)
            rows["path_edge"] += [place_of[e] for e in leaf.path if e in place_of]
            rows["path_start"].append(len(rows["path_edge"]))
        rows["leaf_answer"] += ids_L.tolist()
        rows["edge_start"].append(len(rows["edge_node"]))
        rows["leaf_start"].append(len(rows["leaf_answer"]))
    kinds = {"log_p0": np.float64, "leaf_unseen": np.bool_}
    arrays = {name: np.array(values, kinds.get(name, np.int64)) for name, values in rows.items()}
    return arrays, contexts, tokens


def merge_answers(
    arrays: dict[str, Any], features: Singles, scale: Singles
) -> tuple[dict[str, Any], Singles, Floats]:
    """Join the responses of each problem that give the same answer.

    `features` are (E, D) of the responses that are the edges, `scale` (D,) the weights that each
    column stands for. Returns arrays, features and squared norms of trees whose edges are answers:
    the gradient of an answer's log-probability is the mean of those of its responses.
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
