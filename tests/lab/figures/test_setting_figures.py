import numpy as np
import pandas as pd
import pytest

from lab.base.errors import UserError
from lab.figures.outcomes import calibration_errors, overhead_bars
from lab.figures.theory import REGIMES, regime_map
from lab.measures.dynamics import STEP, step_seconds


def test_overhead_bars_stack_to_the_step(timed):
    table = step_seconds({"ttrl": timed(4.0, 1.0), "guard": timed(5.0, 2.0)})
    figure = overhead_bars(table, titles={"guard": "<i>mine</i>"})
    bars = [t for t in figure.data if t.type == "bar"]
    assert [t.name for t in bars] == ["Sampling", "Guard", "Update", "Other"]
    total = np.sum([t.x for t in bars], axis=0)
    np.testing.assert_allclose(total, [100, 125])
    whole, change = figure.data[-2:]
    assert whole.name == STEP
    np.testing.assert_allclose(whole.x, [100, 125])
    assert [text.strip() for text in change.text] == ["+0.0 ± 0.0 %", "+25.0 ± 0.0 %"]
    assert list(whole.y) == ["TTRL", "&lt;i&gt;mine&lt;/i&gt;"]
    assert figure.layout.xaxis.title.text == "% of the step of TTRL"
    assert whole.customdata[1][0] == pytest.approx(7.5) and whole.customdata[1][2] == 2


def test_regime_map():
    cells = [
        (0.4, 0.25, 0.995, 40.0, "lost"),
        (0.6, 0.25, 0.005, 35.0, "kept"),
        (0.4, 4.0, 0.7, 2.0, "sudden"),
        (0.6, 4.0, 0.3, 8.0, "slow"),
    ]
    table = pd.DataFrame(cells, columns=["p0", "step_sqrt_votes", "lost", "visits", "regime"])
    chart = table.assign(single_flip_share=[0.6, np.nan, 0.9, 0.2], form="diffusion")
    figure = regime_map(chart)
    assert [t.name for t in figure.data] == [title for title, *_ in REGIMES.values()]
    by_name = {t.name: t for t in figure.data}
    sudden = by_name["sudden loss"]
    assert (sudden.x, sudden.text) == ((0,), ("70",))
    assert sudden.base[0] == pytest.approx(1 - 0.47)
    assert by_name["slow loss"].x == (1,)
    assert sudden.customdata == ([0.4, 4.0, 0.7, 2.0, 0.9, "diffusion"],)
    assert figure.layout.xaxis.ticktext == ("0.4", "0.6")
    assert len({t.marker.pattern.shape for t in figure.data}) == 4
    with pytest.raises(UserError, match="missing columns visits"):
        regime_map(chart.drop(columns="visits"))


def test_calibration_errors_are_signed_means_over_the_fits():
    rows = [
        (fit, row, kind, cell, 10.0, 10.0 + 2 * fit + j, 1.5)
        for fit in (0, 1)
        for kind in ("ttrl", "copy", "guard")
        for row in ("llama-amc", "qwen-amc")
        for j, cell in enumerate(("Degraded", "Learned"))
    ]
    columns = ["fit", "row", "kind", "cell", "published", "predicted", "sd"]
    cells = pd.DataFrame(rows, columns=columns)
    figure = calibration_errors(cells, {"llama-amc": "Llama <AMC>"})
    titles = ["Fitted TTRL rows", "Predicted guard rows", "Guard rows by copying TTRL's"]
    assert [a.text for a in figure.layout.annotations] == [f"<b>{title}</b>" for title in titles]
    for heat in figure.data:
        np.testing.assert_allclose(heat.z, [[1, 2], [1, 2]])
    heat = figure.data[0]
    assert list(heat.text[0]) == ["+1.0", "+2.0"]
    assert "2 fits from +0.0 to +2.0" in heat.customdata[0][0][0]
    alone = calibration_errors(cells.assign(sd=np.nan)).data[0].customdata[0][0][0]
    assert alone.startswith("predicted 11.0 %, published")
    assert heat.y[0] == "Llama &lt;AMC&gt;"
    assert figure.layout.coloraxis.cmax == 3 and figure.layout.coloraxis.cmin == -3
