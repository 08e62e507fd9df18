"""The rollout servers of a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ray
from ray.exceptions import RayActorError

from lab.errors import UserError, first_line

_SECONDS = 20
"""To wait for a server's answer."""


def require_servers(replicas: Iterable[Any]) -> None:
    """Refuse to go on without a rollout server, whose votes every problem would lack.

    Raises:
        UserError: a server has ended.
    """
    for replica in replicas:
        for server in replica.servers:
            try:
                ray.get(server.__ray_ready__.remote(), timeout=_SECONDS)
            except RayActorError as error:
                raise UserError(
                    f"rollout server {replica._server_address}: ended "
                    f"({first_line(error)}); see its log in Ray's, then resume the run"
                ) from error
