"""The process that runs math-verify: reads formulas as text, answers with text, can be killed.

Run as a script, it imports nothing of this project. It imports sympy once, then forks a worker
that does the work; where the worker is killed another is forked within milliseconds. The kernel
kills a worker that takes too much CPU time, whatever code it is in, and load on the machine
makes no difference to that. Requests and replies are JSON, one at a time:

    {"id": 1, "do": "key", "texts": ["2(k+1)"], "limit": 0.5}
    {"id": 1, "value": "4.87e+00", "cpu": 0.001}
    {"id": 2, "do": "same", "texts": ["2(k+1)", "2k+2"], "limit": 0.5}
    {"id": 2, "value": true, "cpu": 0.003}
    {"killed": 27}                                  (the worker died, or took too much)
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import signal
import sys
import time
import zlib
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import Any, NoReturn

EXAMPLES = (
    r"\frac{11+9a}{20}", r"3\sqrt{13}-\frac{\pi}{6}", r"6-5I", r"x^5-x^{4}+2x(y+1)=0", r"e^{2x}",
    r"\sin(2x)\cos x", r"0.5n!", r"2\cdot10^{5}", r"\frac{\sqrt{21}}{5}",
)  # fmt: skip
"""Read once at the start: the parser learns its grammar as it goes."""

FLOAT_DIGITS = 12
CLOSE = 1e-10
"""Largest relative difference of two numbers that may be equal."""


def main(channel: Connection, memory_mib: int) -> int:
    """Import, warm up, and serve until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for text in EXAMPLES:
            _key(text)
            _same(text, text)
        _same("2(x+1)", "2x+2")
        _parsed.cache_clear()
    except ImportError as error:
        _send(channel, {"error": str(error)})
        return 1
    # No core dumps, no file can be written.
    for which, value in (("AS", memory_mib * 2**20), ("CORE", 0), ("FSIZE", 0)):
        with contextlib.suppress(ValueError, OSError):  # a stricter limit is set already
            resource.setrlimit(getattr(resource, f"RLIMIT_{which}"), (value, value))
    _send(channel, {"ready": True})
    while True:
        worker = os.fork()
        if worker == 0:
            _work(channel)
        _, status = os.waitpid(worker, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
            return 0
        _send(channel, {"killed": os.WTERMSIG(status)})


def _work(channel: Connection) -> NoReturn:  # pyrefly: ignore[bad-return]
    """Serve requests until the other end closes, and end the process; exit code 1 for errors."""
    code = 1
    try:
        while True:
            _send(channel, _answer(json.loads(channel.recv_bytes())))
    except EOFError:
        code = 0
    finally:
        os._exit(code)


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    start = time.process_time()
    # No handler: the default action ends the process even inside big-integer arithmetic.
    signal.setitimer(signal.ITIMER_PROF, max(request["limit"], 0.001))  # 0 would be no limit
    try:
        value = (_key if request["do"] == "key" else _same)(*request["texts"])
    except (ValueError, RecursionError):
        value = None
    signal.setitimer(signal.ITIMER_PROF, 0)
    return {"id": request["id"], "value": value, "cpu": time.process_time() - start}


def _send(channel: Connection, reply: dict[str, Any]) -> None:
    channel.send_bytes(json.dumps(reply).encode())


def _key(text: str) -> str | None:
    """Nine digits that equal formulas share, at fixed letters; of an equation those of a ratio."""
    from sympy import Eq, Expr

    parsed = _parsed(text)
    if isinstance(parsed, Eq):
        gap: Any = parsed.lhs - parsed.rhs  # pyrefly: ignore[unsupported-operation]
        first, second = (_value(gap, salt) for salt in ("", "again"))
        return None if second == 0 else f"={_digits((first / second).evalf(15))}"
    return _digits(_value(parsed)) if isinstance(parsed, Expr) else None


def _same(one: str, other: str) -> bool:
    from math_verify import verify
    from sympy import Expr

    a, b = _parsed(one), _parsed(other)
    options = {"float_rounding": FLOAT_DIGITS, "timeout_seconds": None}
    if not (verify(a, b, **options) or verify(b, a, **options)):
        return False
    # math-verify rounds: to it 0.00000010 and 0.00000011 could be one number.
    if isinstance(a, Expr) and isinstance(b, Expr):
        x, y = _value(a), _value(b)
        return bool(abs(x - y) <= CLOSE * max(abs(x), abs(y)))
    return True


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Any:
    from latex2sympy2_extended import latex2sympy

    try:
        return latex2sympy(text, is_real=True, convert_degrees=False, normalization_config=None)
    except (Exception, RecursionError) as error:  # its parser raises bare Exception
        raise ValueError(text) from error


def _value(expression: Any, salt: str = "") -> Any:
    """The expression at fixed values between 1 and 2 of its letters; ValueError without one."""
    from sympy import Float

    values = {
        letter: Float(1 + zlib.crc32(f"{letter.name}{salt}".encode()) / 2**32, 20)
        for letter in expression.free_symbols
    }
    try:
        value = expression.evalf(15, subs=values)
        if not value.is_number or value.is_finite is False:
            raise ValueError(expression)
        return value
    except (ArithmeticError, AttributeError, NotImplementedError, TypeError) as error:
        raise ValueError(expression) from error


def _digits(value: Any) -> str:
    """Nine digits, as the parent writes those of a plain number; ValueError if it has none."""
    try:
        number = complex(value)
    except (OverflowError, TypeError) as error:
        raise ValueError(value) from error
    size = abs(number)
    if not math.isfinite(size):
        raise ValueError(value)
    real, imaginary = (
        0.0 if abs(part) <= max(1e-9 * size, 1e-50) else part for part in (number.real, number.imag)
    )
    return f"{real:.8e}" + (f"{imaginary:+.8e}i" if imaginary else "")


if __name__ == "__main__":
    os._exit(main(Connection(int(sys.argv[1])), int(sys.argv[2])))  # there is nothing to tear down
