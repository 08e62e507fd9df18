"""JSON over HTTP to an engine, every failure in one line."""

from __future__ import annotations

import contextlib
import http.client
import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from lab.errors import UserError
from real.engines.rollouts import EngineDied, EngineError

_SHORT_SECONDS = 30.0
"""For questions that a server answers at once."""


class Http:
    """A server that is asked and told things."""

    def __init__(self, url: str, timeout: float) -> None:
        """Talk to a server.

        Args:
            url: of the server, without a path.
            timeout: seconds that an answer may take.

        Raises:
            UserError: it is no URL of a server.
        """
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
            raise UserError(f"engine_url = {url!r}: must look like http://127.0.0.1:8000")
        self.url = url.rstrip("/")
        self.timeout = timeout
        # A proxy of the environment is for the world outside, not for an engine next door.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, path: str) -> dict[str, Any]:
        """Ask; see `post`."""
        return self._ask(urllib.request.Request(self.url + path), min(_SHORT_SECONDS, self.timeout))

    def post(self, path: str, body: Any = None) -> dict[str, Any]:
        """Send JSON, and wait for the answer.

        Raises:
            EngineError: the server refuses.
            EngineDied: it cannot be reached, failed, or did not answer in time.
        """
        data = b"" if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        return self._ask(urllib.request.Request(self.url + path, data, headers), self.timeout)

    def _ask(self, request: urllib.request.Request, timeout: float) -> dict[str, Any]:
        where = f"vLLM server {request.full_url}"
        try:
            with self._opener.open(request, timeout=timeout) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            what = EngineDied if error.code >= 500 else EngineError
            raise what(f"{where}: answered {error.code} ({_reason(error)})") from error
        except TimeoutError as error:
            raise EngineDied(
                f"{where}: no answer within {timeout:g} s; raise engine_timeout if it only needs "
                "more time"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            cause = getattr(error, "reason", error)
            raise EngineDied(f"{where}: cannot be reached ({cause}); is it running?") from error
        try:
            return json.loads(text) if text else {}
        except ValueError as error:
            raise EngineError(f"{where}: answered something that is no JSON") from error


def _reason(error: urllib.error.HTTPError) -> str:
    text = error.read().decode(errors="replace")
    with contextlib.suppress(ValueError, KeyError, TypeError):
        text = json.loads(text)["error"]["message"]
    return " ".join(str(text).split())[:300] or str(error.reason)
