"""The tree of a model's responses: of sampled tokens and their variations, or of whole responses.

Responses to a prompt that share a prefix share nodes. At every node, each token that no sampled
response takes but whose leaf has a probability above `min_novel` becomes a leaf of its own, since
training can raise it; greedy decoding continues it to an answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

Tokens = tuple[int, ...]

CERTAIN = 0.9995
"""A node at which one token is likelier than this, and no other is in the tree, moves nothing."""


@dataclass(slots=True)
class Node:
    """One prefix of a response."""

    prefix: Tokens
    log_p: float
    """Log-probability of the prefix."""
    parent: int
    """Edge that leads here; -1 at the root."""
    edges: dict[int, int] = field(default_factory=dict)
    """Token to edge."""
    children: dict[int, int] = field(default_factory=dict)
    """Token to the node behind its edge."""


@dataclass(frozen=True, slots=True)
class Edge:
    """One token after one prefix, or a whole response."""

    node: int
    tokens: Tokens
    log_p0: float


@dataclass(frozen=True, slots=True)
class Leaf:
    """A whole response."""

    tokens: Tokens
    edge: int
    """Its last edge."""
    unseen: bool
    """Its last edge's token was never sampled; `tokens` continue it greedily."""


@dataclass(slots=True)
class Tree:
    """The tree of one problem."""

    nodes: list[Node]
    edges: list[Edge]
    leaves: list[Leaf]
    left_out: float = 0.0
    """Probability of sampled responses that the tree does not hold, by the model."""
    capped: bool = False
    """Edges were left out because the tree has `max_edges`."""

    def path(self, leaf: Leaf) -> list[int]:
        """Edges from the root to a leaf."""
        edges = []
        edge = leaf.edge
        while edge >= 0:
            edges.append(edge)
            edge = self.nodes[self.edges[edge].node].parent
        return edges[::-1]

    def moving_nodes(self) -> list[int]:
        """Nodes whose distribution an update can change noticeably."""
        top = np.full(len(self.nodes), -np.inf)
        count = np.zeros(len(self.nodes), np.int64)
        for edge in self.edges:
            top[edge.node] = max(top[edge.node], edge.log_p0)
            count[edge.node] += 1
        moving = (top < np.log(CERTAIN)) | (count > 1)
        return [int(node) for node in np.flatnonzero(moving)]


def distinct_responses(tokens_VT: torch.Tensor, lengths_V: torch.Tensor) -> list[Tokens]:
    """Distinct responses of one problem, in order of first appearance."""
    rows = zip(tokens_VT.tolist(), lengths_V.tolist(), strict=True)
    return list(dict.fromkeys(tuple(row[:length]) for row, length in rows))


def grow(
    responses: Sequence[Tokens],
    log_p_RTA: Sequence[NDArray[np.float32]],
    min_p: float,
    min_novel: float,
    max_edges: int,
) -> Tree:
    """The token tree of one problem; leaves of unseen tokens are not yet continued.

    Args:
        responses: distinct sampled responses.
        log_p_RTA: for each, (T, A) log-probabilities of every token after every prefix.
        min_p: sampled responses of less probability are left out.
        min_novel: unseen tokens whose leaf has less probability are left out.
        max_edges: the tree ends here; the likeliest responses, then tokens, come first.
    """
    tree = Tree([Node((), 0.0, -1)], [], [])
    rows: dict[int, NDArray[np.float32]] = {}
    totals = [
        float(sum(log_p_TA[t, token] for t, token in enumerate(tokens)))
        for tokens, log_p_TA in zip(responses, log_p_RTA, strict=True)
    ]
    for r in sorted(range(len(totals)), key=lambda r: -totals[r]):
        full = len(tree.edges) + len(responses[r]) > max_edges
        if totals[r] < np.log(min_p) or full:
            tree.capped |= full and totals[r] >= np.log(min_p)
            tree.left_out += float(np.exp(totals[r]))
            continue
        _add(tree, responses[r], log_p_RTA[r], rows)
    unseen = [
        (tree.nodes[node].log_p + float(log_p_A[token]), node, token, float(log_p_A[token]))
        for node, log_p_A in rows.items()
        for token in _unseen(tree.nodes[node], log_p_A, min_novel)
    ]
    for _, node, token, log_p in sorted(unseen, reverse=True)[: max_edges - len(tree.edges)]:
        edge = _edge(tree, node, token, log_p)
        tree.leaves.append(Leaf((*tree.nodes[node].prefix, token), edge, True))
    tree.capped |= len(tree.edges) == max_edges
    return tree


def whole_responses(tokens_VT: torch.Tensor, lengths_V: torch.Tensor) -> Tree:
    """The tree of one problem whose edges are sampled responses, as likely as they are frequent."""
    rows = zip(tokens_VT.tolist(), lengths_V.tolist(), strict=True)
    counts = Counter(tuple(row[:length]) for row, length in rows)
    edges = [Edge(0, tokens, float(np.log(n / counts.total()))) for tokens, n in counts.items()]
    leaves = [Leaf(tokens, e, False) for e, tokens in enumerate(counts)]
    return Tree([Node((), 0.0, -1)], edges, leaves)


def _add(
    tree: Tree,
    tokens: Tokens,
    log_p_TA: NDArray[np.float32],
    rows: dict[int, NDArray[np.float32]],
) -> None:
    node, edge = 0, -1
    for t, token in enumerate(tokens):
        rows.setdefault(node, log_p_TA[t])
        known = tree.nodes[node].edges.get(token)
        edge = _edge(tree, node, token, float(log_p_TA[t, token])) if known is None else known
        if t + 1 < len(tokens):
            node = _child(tree, node, edge)
    tree.leaves.append(Leaf(tokens, edge, False))


def _edge(tree: Tree, node: int, token: int, log_p: float) -> int:
    tree.nodes[node].edges[token] = len(tree.edges)
    tree.edges.append(Edge(node, (token,), log_p))
    return len(tree.edges) - 1


def _child(tree: Tree, node: int, edge: int) -> int:
    above, (token,) = tree.nodes[node], tree.edges[edge].tokens
    if token not in above.children:
        above.children[token] = len(tree.nodes)
        log_p = above.log_p + tree.edges[edge].log_p0
        tree.nodes.append(Node((*above.prefix, token), log_p, edge))
    return above.children[token]


def _unseen(node: Node, log_p_A: NDArray[np.float32], min_novel: float) -> Iterator[int]:
    for token in np.flatnonzero(node.log_p + log_p_A > np.log(min_novel)):
        if int(token) not in node.edges:
            yield int(token)
