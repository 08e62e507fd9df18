"""`guard-sim explore`: serve the explorer on this machine alone."""

from __future__ import annotations

import importlib.util
import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.base.errors import UserError
from sim.settings.config import SimConfig, settings_of

HOST = "127.0.0.1"
"""Never reachable from another machine."""


@dataclass(kw_only=True)
class Explore:
    """Serve a page whose sliders rerun the simulator, until Ctrl-C.

    Examples:
        guard-sim explore
        guard-sim explore --population llama-amc --replicates 16
        guard-sim explore --port 8060
    """

    port: int = 8050
    """Port on 127.0.0.1."""
    profile: str | None = None
    """The guard: paper (default), release, frs, mps or rcsu."""
    config: Path | None = None
    """TOML file with settings; options on the command line win."""
    settings: SimConfig = field(default_factory=lambda: SimConfig(replicates=8))

    @classmethod
    def defaults(cls, argv: Sequence[str]) -> dict[str, Any]:
        """Settings of --config, --population and --profile for what is not given."""
        return {"settings": settings_of(argv, replicates=8)}

    def run(self) -> None:
        """Serve the page."""
        if importlib.util.find_spec("dash") is None:
            raise UserError(
                "dash not installed; install with pip install 'ttrl-guard-lab[explore]'"
            )
        _check_port(self.port)
        from sim.explore import make_app

        app = make_app(self.settings)
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        print(f"explorer: http://{HOST}:{self.port} (Ctrl-C ends it)", flush=True)
        app.run(host=HOST, port=str(self.port), debug=False)


def _check_port(port: int) -> None:
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
