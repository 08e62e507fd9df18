r"""The answer of a response: the content of its last balanced box."""

from __future__ import annotations

import re

# One or two backslashes: models sometimes escape their LaTeX once more. Fixed repeat counts keep
# every attempt at a match constant in time, hence the whole scan linear.
_BRACES = re.compile(r"\\{1,2}(?:boxed|fbox)\s{0,8}\{|\\[\\{}]|[{}]")


def last_box(text: str) -> str | None:
    r"""Content of the last balanced `\boxed{...}` or `\fbox{...}`.

    "Last" is the box that opens last among those that close, so of nested boxes it is the inner
    one. Boxes that never close and escaped braces (`\{`) are passed over. Linear in the text.

    Returns:
        What stands between the braces, perhaps empty; None without a balanced box.
    """
    if "box" not in text:
        return None
    best, end = -1, -1
    open_braces: list[int] = []  # where a box's content starts; -1 for an ordinary brace
    for match in _BRACES.finditer(text):
        token = match.group()
        if token == "{":
            open_braces.append(-1)
        elif token == "}":
            start = open_braces.pop() if open_braces else -1
            if start > best:
                best, end = start, match.start()
        elif len(token) > 2:
            open_braces.append(match.end())
    return None if best < 0 else text[best:end]
