"""The server of `forked_ranks`, whose runs may have parts replaced: a request's "parts" names them.

"silent": the engine tells no entropies, so that the trainer's own pass must. "heard": verdicts are
printed, and how many groups of new solutions follow them. "reword": a rewording is a rule's, where
the sum of the characters that the model wrote is no multiple of 3: what that writes itself is no
problem.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import forked_ranks


def silent() -> None:
    from real.engines.transformers_engine import TransformersEngine

    kind: Any = TransformersEngine
    sample = kind.sample

    def untold(*arguments: Any) -> Any:
        return replace(sample(*arguments), entropy_PV=None, certainty_PV=None)

    kind.sample = untold


def heard() -> None:
    from real.vote.judge import Judge

    groups = Judge.groups

    def told(self: Judge, *arguments: Any) -> Any:
        found = groups(self, *arguments)
        asked = self.asked
        assert asked is not None
        again = [sum(len(g.lengths_K) > 1 for g in row) for row in found]
        print("verdicts", asked.verdicts_PQ.tolist(), "again", again)
        return found

    Judge.groups = told


def reword() -> None:
    from real.tiny.rewording import reworded
    from real.vote.second import Paraphrases

    kind: Any = Paraphrases
    ask = kind._ask

    def usable(self: Any) -> list[str | None]:
        pairs = zip(self.parts.prompts.problems, ask(self), strict=True)
        return [reworded(p.prompt) if sum(map(ord, text or "")) % 3 else None for p, text in pairs]

    kind._ask = usable


PARTS: dict[str, Callable[[], None]] = {"silent": silent, "heard": heard, "reword": reword}


def child(request: dict[str, Any], rank: int, whole: Any = forked_ranks.child) -> int:
    for name in request["parts"]:
        PARTS[name]()
    return whole(request, rank)


if __name__ == "__main__":
    forked_ranks.child = child
    forked_ranks.serve()
