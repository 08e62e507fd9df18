"""Dependence of the results on the guard's settings, where runs of an arm differ in them."""

from __future__ import annotations

from lab.errors import UserError
from lab.figures.sensitivity import sensitivity_curves
from lab.report import derived
from lab.report.digest import World
from lab.report.sections.section import Absent, Drawing, Piece, Section


def _sensitivity(world: World) -> list[Piece]:
    try:
        table = derived.sensitivities(world)
    except UserError:
        return [Absent("No run of a guard with another value of tau_FR, W or beta_max.")]
    figure = sensitivity_curves(table, world.titles)
    return [Drawing(figure, "Metrics over the guard's settings, one at a time")]


SETTINGS = (
    Section(
        "sensitivity",
        "The guard",
        "How much the guard's settings matter",
        "One setting at a time, the others at their defaults (dotted line). A grey area joins "
        "values that are one and the same algorithm, for FR is a multiple of 1/W: what differs "
        "within it is noise. Bands are one standard deviation over the replicates.",
        _sensitivity,
    ),
)
"""In the order of the page."""
