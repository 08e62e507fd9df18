import itertools

from lab.base.arms import ALL_ARMS
from lab.figures import style
from lab.measures.fate import FATES
from lab.trace.schema import ROUTES


def test_every_fate_and_route_has_its_own_colour():
    assert set(style.FATE_COLOURS) == set(FATES)
    assert set(style.ROUTE_COLOURS) == set(ROUTES.values())
    for colours in (style.FATE_COLOURS, style.ROUTE_COLOURS):
        assert len(set(colours.values())) == len(colours)


def test_arms_differ_in_colour_and_in_symbol():
    styles = [style.arm_style(arm) for arm in ALL_ARMS]
    for one, other in itertools.combinations(styles, 2):
        assert one.colour != other.colour and one.symbol != other.symbol


def test_variants_of_an_arm_differ_in_colour_and_many_arms_in_colour_or_dash(monkeypatch):
    monkeypatch.setattr(style, "_given", [])  # as in a new process
    style.arm_style.cache_clear()
    styles = [style.arm_style(f"guard (W={n})") for n in range(24)]
    assert len({own.colour for own in styles[:6]}) == 6
    assert len({(own.colour, own.dash) for own in styles}) == 24
    assert styles[3] == style.arm_style("guard (W=3)")
