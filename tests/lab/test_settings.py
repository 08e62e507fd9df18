from dataclasses import dataclass, field, fields
from typing import Literal

import numpy as np
import pytest

from guard_core import RCSU, GuardConfig, Rates
from guard_core.config import RECORDS
from lab.base.errors import UserError
from lab.base.settings import flattened, from_values, to_values, toml_values
from real.settings.config import TrainConfig
from real.settings.groups import FieldMap
from sim.settings.config import SimConfig


@dataclass(frozen=True)
class Optimizer:
    lr: float = 0.1
    kind: Literal["sgd", "adam"] = "sgd"


@dataclass(frozen=True)
class Config:
    n_problems: int = 4
    optimizer: Optimizer = Optimizer(lr=0.2)
    guard: GuardConfig = field(default_factory=GuardConfig.paper)
    seeds: tuple[int, ...] = (0,)

    def __post_init__(self):
        if self.n_problems < 1:
            raise ValueError(f"n_problems = {self.n_problems}: must be at least 1")


def from_file(path):
    return from_values(toml_values(path), Config, str(path))


def read(tmp_path, text):
    path = tmp_path / "a.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return from_file(path)


def test_nested_settings_and_defaults(tmp_path):
    config = read(tmp_path, 'seeds = [1, 2]\n[guard]\nW = 3\n[optimizer]\nkind = "adam"\n')
    parts = {"guard": GuardConfig().set(W=3), "optimizer": Optimizer(kind="adam")}
    assert config == Config(seeds=(1, 2), **parts)
    assert read(tmp_path, "") == Config()


def test_a_guard_has_a_table_for_each_part_that_is_on(tmp_path):
    guard = GuardConfig(rates=Rates(W=3), frs=None, rcsu=RCSU(theta_MR=0.4))
    tables = "[guard]\nfrs = false\n[guard.rcsu]\ntheta_MR = 0.4\n[guard.rates]\nW = 3\n"
    short = "[guard]\nfrs = false\ntheta_MR = 0.4\nW = 3\nl1 = 0.2\n"  # as old run folders
    assert read(tmp_path, tables).guard == read(tmp_path, short).guard == guard
    noted = to_values(Config(guard=guard))["guard"]
    assert noted["frs"] is False and noted["rcsu"]["theta_MR"] == 0.4
    assert from_values({"guard": noted}, Config, "") == Config(guard=guard)
    flat = flattened({"guard": noted})
    assert (flat["guard.frs"], flat["guard.l1"], flat["guard.theta_MR"]) == (False, 0.5, 0.4)


def test_numpy_numbers_become_plain_ones():
    values = to_values(Config(optimizer=Optimizer(lr=np.float64(0.25)), seeds=(np.int64(3),)))
    assert values["optimizer"]["lr"] == 0.25 and type(values["optimizer"]["lr"]) is float
    assert type(values["seeds"][0]) is int
    with pytest.raises(TypeError, match="cannot stand in JSON"):
        to_values(Config(seeds=(object(),)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n_problem = 3", "n_problem: no such setting; perhaps you meant n_problems"),
        ("learning_rate = 3e-4", "no such setting; perhaps you meant lr under [optimizer]"),
        ("[gaurd]\nW = 3", "gaurd: no such setting; perhaps you meant [guard]"),
        ("[guard]\nseeds = [1]", "guard.seeds: no such setting; perhaps you meant seeds at"),
        ("[guard]\ntau_fr = 0.3", "perhaps you meant tau_FR under [guard.rates]"),
        ("[guard]\ntau = 0.3", "guard.tau: no such setting"),
        ("[guard.frs]\ntheta_MR = 0.3", "perhaps you meant theta_MR under [guard.rcsu]"),
        ("[guard]\nfrs = 3", "frs = 3: must be of type bool"),
        ("[guard]\nrates = 3", "rates: no such guard setting"),
        ('n_problems = "many"', "n_problems"),
        ("n_problems = 0", "n_problems = 0: must be at least 1"),
        ("[guard]\nW = 0", "W = 0"),
        ('[optimizer]\nkind = "lion"', "optimizer.kind = 'lion': must be one of sgd, adam"),
        ("guard = 3", "guard"),
        ("n_problems = ", "not valid TOML"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_a_wrong_file_is_named_with_its_fault(tmp_path, text, message):
    with pytest.raises(UserError) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'a.toml'}: ") and message in str(caught.value)


def test_files_that_are_not_there(tmp_path):
    for path in (tmp_path / "nowhere.toml", tmp_path):
        with pytest.raises(UserError, match="cannot be read"):
            from_file(path)


@pytest.mark.parametrize("config", [*RECORDS.values(), SimConfig, TrainConfig, FieldMap])
def test_every_number_of_both_worlds_has_a_bound(config):
    unbounded = ("int", "float", "int | None", "float | None")
    assert [field.name for field in fields(config) if field.type in unbounded] == []
