"""The response file: a model's token tree and the gradients of its edges, measured before training.

It is written by `guard-train measure` and read by the simulator's policy `measured`. Around the
weights theta_0 the log-probability of an edge e, a token after a prefix, is linear in their change:

    log p(e) = log p_0(e) + sum_k scale_k psi_ek (theta_k - theta_0k) + normalisation

with psi the gradient of log p_0(e) on D of the d weights, drawn at random, and scale the inverse of
the chance that it was drawn. A leaf is a response, whose probability is the product over its edges.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from lab.base.errors import UserError
from lab.base.files import whole

VERSION = 3
"""Of the file's format; a file of another version is refused."""

_USED = 7 / 8
"""Share of the drawn weights that one simulated run uses."""

Ints = NDArray[np.int64]


class Facts(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Model, problems and settings of a measurement."""

    version: int = VERSION
    task: str
    """Name of the problem set and model, for readers."""
    model: dict[str, str]
    """Digest of each file of the model's folder."""
    problems: str
    """Digest of the problems as the model sees them."""
    problem_ids: list[str]
    answers: list[list[str]]
    """Text of each answer id, per problem."""
    temperature: float
    n_weights: int
    """d, weights that training moves."""
    unit: str = "token"
    """Of which gradients were measured: token, response or answer."""
    settings: dict[str, float]
    """Of the measurement: responses, min_p, min_novel, weights, max_edges, seed."""
    run: dict[str, Any] = {}
    """Settings of the run that is to be predicted, as a manifest has them; empty if not known."""
    roles: dict[str, list[str]] = {}
    """Names of these settings by role, as a manifest has them."""
    left_out: float
    """Mean probability of sampled responses that the tree does not hold."""
    capped: int = 0
    """Problems whose tree was cut at `max_edges`."""
    growth: float | None = None
    """g: squared change of the gradients beyond the softmax, relative to their squared norm, per
    distance |theta - theta_0|; None if not measured."""
    sampling: float | None = None
    """s: squared error of the gradients on the drawn weights of one simulated run, relative to
    their squared norm; measured together with g."""


@dataclass(frozen=True, slots=True)
class Response:
    """A measured model: N problems, E edges, L leaves, D weights drawn of d."""

    facts: Facts
    truth_N: Ints
    """Answer id of the reference answer; -1 without one, or where no leaf gives it."""
    edge_start: Ints
    """(N + 1,) first edge of each problem; edges of one node are neighbours."""
    edge_node: Ints
    """(E,) node of each edge, counted within its problem."""
    log_p0: NDArray[np.float64]
    """(E,) log-probability of the edge's token after its prefix."""
    features: NDArray[np.floating[Any]]
    """(E, D) gradient of `log_p0` on the drawn weights, which are in random order."""
    scale: NDArray[np.float32]
    """(D,) number of the model's weights that each stands for: 1 / chance that it was drawn."""
    start: NDArray[np.float32]
    """(D,) the drawn weights before training."""
    norm2: NDArray[np.float64]
    """(E,) squared norm of the gradient on all d weights."""
    leaf_start: Ints
    """(N + 1,) first leaf of each problem."""
    leaf_answer: Ints
    """(L,) answer id; -1 unparseable."""
    leaf_length: Ints
    """(L,) tokens of the response."""
    leaf_unseen: NDArray[np.bool_]
    """(L,) no sampled response ends here: one unseen token, continued greedily."""
    path_start: Ints
    """(L + 1,) first entry of each leaf in `path_edge`."""
    path_edge: Ints
    """Edges of each leaf, counted within its problem. Edges of nodes at which one token is all but
    certain are left out, so a path may be short or empty."""

    @property
    def n_problems(self) -> int:
        """N."""
        return len(self.truth_N)

    @property
    def n_used(self) -> int:
        """Drawn weights that one simulated run uses: all of a small model, else most of them."""
        drawn = len(self.scale)
        return drawn if drawn == self.facts.n_weights else int(_USED * drawn)

    def used_scale(self, used: slice) -> NDArray[np.float32]:
        """Return the number of the model's weights that each of the `n_used` weights stands for."""
        return self.scale[used] * np.float32(len(self.scale) / self.n_used)

    @property
    def n_answers(self) -> int:
        """Answer ids that every problem needs, at least 2.

        The last one is no leaf's where the reference answer of a problem is given by no leaf.
        """
        most = max(len(texts) for texts in self.facts.answers)
        return max(2, most + bool((self.truth_N < 0).any()))


_ARRAYS = tuple(field.name for field in fields(Response) if field.name != "facts")


def write_response(path: Path | str, response: Response) -> None:
    """Write a response file, whole or not at all."""
    arrays = {name: getattr(response, name) for name in _ARRAYS}
    facts = np.frombuffer(msgspec.json.encode(response.facts), np.uint8)
    with whole(Path(path)) as place, open(place, "wb") as file:
        np.savez(file, facts=facts, **arrays)


def read_response(path: Path | str) -> Response:
    """Read a response file.

    A UserError where there is none, or it is another file, damaged or of another version.
    """
    where, again = f"response: {path}", "make it again with guard-train measure"
    try:
        with np.load(path, allow_pickle=False) as stored:
            values = {name: stored[name] for name in ("facts", *_ARRAYS)}
        facts = msgspec.json.decode(values.pop("facts").tobytes())
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        told = f"cannot be read ({error.strerror}); check it, or use guard-train measure"
        raise UserError(f"{where}: {told}") from error
    except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{where}: not a response file, or damaged; {again}") from error
    version = facts.get("version") if isinstance(facts, dict) else None
    if version != VERSION:
        raise UserError(f"{where}: format version {version}, not {VERSION}; {again}")
    try:
        response = Response(msgspec.convert(facts, Facts), **values)
        _check(response)
    except (ValueError, TypeError) as error:  # also msgspec's
        raise UserError(f"{where}: damaged ({error}); {again}") from error
    return response


def _check(r: Response) -> None:
    """Refuse arrays that do not fit together (ValueError)."""
    E, L, N = len(r.log_p0), len(r.leaf_answer), r.n_problems
    checks: dict[str, Any] = {
        "features": r.features.ndim == 2 and len(r.features) == E,
        "start": r.start.shape == r.scale.shape == r.features.shape[1:],
        "problems": len(r.facts.answers) == len(r.facts.problem_ids) == N > 0,
        "edge_start": _is_partition(r.edge_start, N, E),
        "leaf_start": _is_partition(r.leaf_start, N, L),
        "path_start": _is_partition(r.path_start, L, len(r.path_edge)),
        "edge_node": len(r.edge_node) == len(r.norm2) == E,
        "leaves": len(r.leaf_length) == len(r.leaf_unseen) == L,
    }
    for name, sound in checks.items():
        if not sound:
            raise ValueError(name)
    numbers = (r.log_p0, r.norm2, r.features, r.scale, r.start)
    if not all(np.isfinite(values).all() for values in numbers):
        raise ValueError("numbers that are not finite")
    edges_L = np.repeat(np.diff(r.edge_start), np.diff(r.leaf_start))
    edges_P = np.repeat(edges_L, np.diff(r.path_start))
    if (r.path_edge < 0).any() or (r.path_edge >= edges_P).any():
        raise ValueError("path_edge")
    known_L = np.repeat([len(texts) for texts in r.facts.answers], np.diff(r.leaf_start))
    if (r.leaf_answer < -1).any() or (r.leaf_answer >= known_L).any():
        raise ValueError("leaf_answer")


def _is_partition(start: Ints, parts: int, total: int) -> bool:
    sound = len(start) == parts + 1 and start[0] == 0 and start[-1] == total
    return bool(sound and (np.diff(start) >= 0).all())
