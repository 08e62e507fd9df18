"""The releases of vLLM that this package is written for."""

from __future__ import annotations

import re

from lab.errors import UserError

SUPPORTED = ((0, 32), (0, 33))
"""Major and minor version; their Python interfaces were compared with all calls made here."""


def check_version(version: str, where: str) -> None:
    """Refuse a release with another interface.

    Args:
        version: of vLLM, such as `0.32.0`.
        where: it was found, for the message.

    Raises:
        UserError: the release is not supported.
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) not in SUPPORTED:
        raise UserError(
            f"{where}: vLLM {version} is not supported, {_names()} are; "
            "pip install 'ttrl-guard-lab[vllm]'"
        )


def _names() -> str:
    return " and ".join(f"{major}.{minor}" for major, minor in SUPPORTED)
