"""A small response file, made up of random numbers, and runs of its policy."""

import numpy as np

from lab.trace.response import Facts, Response
from sim import SimConfig

N, A, D = 6, 3, 24
KEY = np.uint64(11)
CURVED, SAMPLING = 0.6, 0.05


FACTS = {"task": "test", "model": {}, "problems": "", "problem_ids": [str(n) for n in range(N)]}
FACTS |= {"answers": [["a", "b", "c"]] * N, "temperature": 1.0, "settings": {}, "left_out": 0.0}


def small_response(growth=CURVED, truths=(0, 1, 2, 0, 1, 0)):
    """Per problem a root with 3 tokens; two of them lead to nodes with 3 and 2 tokens."""
    rng = np.random.default_rng(3)
    nodes, paths = [0, 0, 0, 1, 1, 1, 2, 2], [[0, 3], [0, 4], [0, 5], [1, 6], [1, 7], [2]]
    p = [rng.dirichlet(np.full(n, 2.0)) for _ in range(N) for n in (3, 3, 2)]
    edges, leaves = N * len(nodes), N * len(paths)
    features = rng.normal(size=(edges, D)).astype(np.float32)
    scale = rng.uniform(1, 3, D).astype(np.float32)
    return Response(
        facts=Facts(**FACTS, n_weights=2 * D, growth=growth, sampling=SAMPLING),
        truth_N=np.array(truths),
        edge_start=np.arange(N + 1) * len(nodes),
        edge_node=np.tile(nodes, N),
        log_p0=np.log(np.concatenate(p)),
        features=features,
        scale=scale,
        start=rng.normal(size=D).astype(np.float32),
        norm2=features.astype(float) ** 2 @ scale,
        leaf_start=np.arange(N + 1) * len(paths),
        leaf_answer=np.concatenate([rng.permutation([0, 0, 1, 2, 1, -1]) for _ in range(N)]),
        leaf_length=rng.integers(1, 9, leaves),
        leaf_unseen=np.arange(leaves) % 5 == 0,
        path_start=np.concatenate([[0], np.cumsum(np.tile([2, 2, 2, 2, 2, 1], N))]),
        path_edge=np.tile([e for path in paths for e in path], N),
    )


def settings(file, **others):
    sizes = {"n_problems": N, "n_answers": A, "epochs": 3, "batch_size": 4, "mini_batch": 2}
    votes = {"n_votes": 16, "n_samples": 8, "replicates": 2}
    measured = {"policy": "measured", "response": file, "lr": 0.02}
    return SimConfig(**{**sizes, **votes, **measured, **others})


def rows(trace, replicate=None):
    table = trace.visits
    return table if replicate is None else table[table.replicate == replicate].reset_index()
