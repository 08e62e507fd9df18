"""HTML that is escaped by construction: text is text unless a function here made it."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

_VOID = frozenset({"meta", "br", "hr", "input", "col"})


class Html(str):
    """Markup made by this module: it is not escaped again."""

    __slots__ = ()


Child = str | int | float | None
"""Content of an element; anything but `Html` is escaped."""


def text(value: object) -> Html:
    """A value as markup: `Html` as it is, everything else escaped."""
    return value if isinstance(value, Html) else Html(html.escape(str(value)))


def tag(name: str, *children: Child, **attributes: str | bool | None) -> Html:
    """An element.

    Args:
        name: of the element, chosen in code and never taken from data.
        children: text or markup; None is left out.
        attributes: a trailing underscore is dropped (`class_`), others become hyphens; True gives a
            bare attribute, None and False give none.
    """
    opening = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Html(f"<{name}{opening}>")
    return Html(f"<{name}{opening}>{join(children)}</{name}>")


def join(children: Iterable[Child]) -> Html:
    """Several pieces, one after the other."""
    return Html("".join(text(child) for child in children if child is not None))


def raw(trusted: str) -> Html:
    """Markup, script or style that this package ships; never anything read from a run."""
    return Html(trusted)


def table(
    head: Sequence[Child], rows: Iterable[Sequence[Child]], caption: Child = None, class_: str = ""
) -> Html:
    """A table whose first column names its rows; it scrolls by itself where it is too wide."""
    top = tag("tr", *(tag("th", cell, scope="col") for cell in head))
    body = [
        tag("tr", tag("th", first, scope="row"), *(tag("td", cell) for cell in rest))
        for first, *rest in rows
    ]
    inner = tag(
        "table",
        tag("caption", caption) if caption else None,
        tag("thead", top),
        tag("tbody", *body),
        class_=class_ or None,
    )
    return tag("div", inner, class_="scroll", tabindex="0")


def definitions(pairs: Iterable[tuple[Child, Child]]) -> Html:
    """A list of names and what they hold."""
    cells = (join((tag("dt", name), tag("dd", value))) for name, value in pairs)
    return tag("dl", *cells)


def _attribute(key: str, value: str | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{html.escape(value)}"'
