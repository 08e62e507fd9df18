"""What a GPU asks of the engine on PyTorch, tested where there is none.

An epoch is run on PyTorch's `meta` device, which has shapes and no numbers: code that asks for a
number, or mixes tensors of the host in, fails there as it would stall or fail on a GPU. And it is
recorded as a list of kernels and replayed from that alone, as a CUDA graph does.
"""

from contextlib import contextmanager, nullcontext
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from guard_core import GuardConfig
from sim import SimConfig
from sim.torch_engine.device import Replay
from sim.torch_engine.engine import TorchSimulation

BASE = SimConfig(n_problems=16, epochs=5, replicates=3, feature_dim=5, engine="torch", device="cpu")
CONFIGS = [
    BASE,
    replace(BASE, policy="features", optimizer="adam", mini_batch=3, max_grad_norm=0.1),
    replace(BASE, policy="independent", optimizer="adam", guard=GuardConfig.release()),
    replace(BASE, guard=GuardConfig(label_from="memory", advantage_scale="batch"), skip_rate=0.2),
    replace(BASE, policy="kernel", kernel="kernel", labels="truth", update="expected"),
]


@pytest.fixture(autouse=True)
def kernel(monkeypatch):
    noise_NN = np.random.default_rng(0).normal(0, 0.1, (40, 40))

    def read(_path: str, n: int) -> np.ndarray:
        return (np.eye(40) + noise_NN + noise_NN.T)[:n, :n]

    monkeypatch.setattr("sim.torch_engine.policies.read_kernel", read)


class Watched(TorchDispatchMode):
    """Counts kernels, and refuses tensors that are not on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, out)):
            assert not isinstance(leaf, torch.Tensor) or leaf.device.type == "meta", func
        self.kernels += not func.is_view
        return out


def kernels(config: SimConfig) -> int:
    simulation = TorchSimulation(config)
    simulation._before()
    with Watched() as watched:
        simulation._visit_all()
    return watched.kernels


@pytest.mark.parametrize("config", CONFIGS)
def test_an_epoch_stays_on_its_device(config, monkeypatch):
    """No number is read back, and a batch costs the same few kernels wherever it stands."""
    meta = torch.device("meta")
    monkeypatch.setattr("sim.torch_engine.engine.choose_device", lambda name: meta)
    one, two, three = (kernels(replace(config, n_problems=n)) for n in (16, 24, 32))
    assert three - two == two - one
    assert config is not BASE or two - one <= 280


class Tape(TorchDispatchMode):
    """Stands in for a CUDA graph: what runs in it leaves no trace but a list of kernels."""

    def __init__(self) -> None:
        super().__init__()
        self._kernels, self._before = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            self._before.append((args[0], args[0].clone()))
        out = func(*args, **kwargs)
        if not func.is_view:
            self._kernels.append((func, args, kwargs, out))
        return out

    def rewind(self) -> None:
        for tensor, value in reversed(self._before):
            tensor.copy_(value)

    def replay(self) -> None:
        for func, args, kwargs, out in self._kernels:
            new = func(*args, **kwargs)
            if not func._schema.is_mutable:
                for old_leaf, new_leaf in zip(tree_leaves(out), tree_leaves(new), strict=True):
                    old_leaf.copy_(new_leaf)


@contextmanager
def taping(tape: Tape):
    with tape:
        yield
    tape.rewind()


@pytest.mark.parametrize("config", CONFIGS)
def test_an_epoch_can_be_recorded_and_replayed(config, monkeypatch):
    for name, stand_in in {
        "CUDAGraph": Tape,
        "graph": taping,
        "Stream": Mock,
        "current_stream": Mock,
        "stream": lambda stream: nullcontext(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    plain = list(TorchSimulation(config).run())
    recorded = TorchSimulation(config)
    visits = []
    work, recorded._visit_all = recorded._visit_all, None
    recorded._visit = Replay(lambda: visits.append(1) or work())
    landing = recorded._landing
    fetch = landing.fetch
    monkeypatch.setattr(
        landing, "fetch", lambda columns: {k: v.copy() for k, v in fetch(columns).items()}
    )
    for one, two in zip(plain, recorded.run(), strict=True):
        for table in ("visits", "steps", "evals"):
            for name, column in (getattr(one, table) or {}).items():
                np.testing.assert_array_equal(getattr(two, table)[name], column, err_msg=name)
    assert len(visits) == 2, "once to warm up, once to record"
