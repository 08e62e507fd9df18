"""The libraries of the trainer, which an installation of the simulator alone lacks."""

from __future__ import annotations

import importlib.util

from lab.base.errors import UserError

NEEDED = ("torch", "transformers", "safetensors")
INSTALL = "pip install 'ttrl-guard-lab[real]'"


def installed(package: str) -> bool:
    """Return whether a package can be imported; a mere folder of its name does not count."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def require_torch() -> None:
    """Say what to install where the trainer's libraries are missing.

    Raises:
        UserError: one of them cannot be found.
    """
    missing = [name for name in NEEDED if not installed(name)]
    if missing:
        raise UserError(f"{', '.join(missing)} not installed; install with {INSTALL}")
