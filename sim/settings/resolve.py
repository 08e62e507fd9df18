"""Settings of a simulation from files, a population, an arm and options; the explorer's port."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

from lab.base.errors import UserError
from lab.base.settings import from_values, toml_values
from lab.base.simulated import taken
from lab.cli import with_arm_options
from sim.settings import populations
from sim.settings.config import SimConfig, cell_of
from sim.settings.populations import NAMED

File = dict[str, Any] | None
"""The values of a settings file that `lab.cli.arms_of` has read."""


def settings_of(given: Mapping[str, Any], file: File = None, **base: Any) -> SimConfig:
    """Return `base` with the settings of the file over it, and those of the options over both.

    A measured policy begins with the settings of the run in its response file. Options are read
    here as far as they decide the values of others: `--population`, `--policy`, `--response`,
    `--lr`, and those of `lab.cli.with_arm_options`.
    """
    path = given.get("config")
    file = toml_values(path) if file is None else file
    values = base | file
    usual = values.get("population", SimConfig.__dataclass_fields__["population"].default)
    options = {name: given[name] for name in ("response", "lr") if name in given}
    if given.get("population") in NAMED:
        options["population"] = given["population"]
    if given.get("policy") == "measured":
        options["policy"] = "measured"
    both = {**values, **options}
    policy, response = both.get("policy", ""), both.get("response")
    if policy == "measured" and isinstance(response, str):
        facts = populations.response_at(response).facts
        measured = taken(facts.run, facts.roles, f"response: {response}") if facts.run else {}
        values = measured | values
    values = with_arm_options(given, values, cell_of(policy, given.get("population", usual)))
    return from_values(values | options, SimConfig, str(path or ""))


HOST = "127.0.0.1"
"""Where the explorer listens: never reachable from another machine."""


def check_port(port: int) -> None:
    """Refuse a port of `HOST` that cannot be used."""
    if not 0 < port < 65536:
        raise UserError(f"port = {port}: must lie in 1 to 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise UserError(
                f"port = {port}: cannot be used ({error.strerror}); choose another --port"
            ) from error
