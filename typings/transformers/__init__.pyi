"""All names of transformers without a type: pyright needs a third of its time to find theirs."""

from typing import Any

def __getattr__(name: str) -> Any: ...
