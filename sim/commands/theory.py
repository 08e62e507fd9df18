"""`guard-sim theory`: the exact chain compared with the simulator, or the regime chart, as text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Theory:
    """Two-answer theory: lock-in, window and flips, exact and drawn, with 95 % intervals.

    Examples:
        guard-sim theory
        guard-sim theory --p0 0.55 --step 0.1 0.3 --n-votes 16 --n-samples 8
        guard-sim theory --chart
    """

    p0: tuple[float, ...] = (0.52, 0.55, 0.6)
    """Chances of the correct answer before training."""
    step: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0)
    """Logit steps per unit of standardised advantage."""
    n_votes: int = 64
    """V, responses per visit."""
    n_samples: int = 32
    """K, the first of them, which are trained on."""
    runs: int = 20_000
    """Problems drawn per cell."""
    max_visits: int = 2000
    """The most visits of a drawn problem."""
    seed: int = 0
    """Seed of the draws."""
    chart: bool = False
    """Print the regime chart over p0 and step * sqrt(V) instead; exact values only."""

    def run(self) -> int:
        """Print the table."""
        from sim.theory.tables import CHART_P0, CHART_STEPS, as_text, drawn_table, regime_chart

        if self.chart:
            chart = regime_chart(CHART_P0, CHART_STEPS, self.n_votes, self.n_samples)
            columns = ["p0", "step_sqrt_votes", "lost", "visits", "single_flip_share", "regime"]
            print(chart[columns].round(4).to_string(index=False))
            return 0
        table = drawn_table(
            self.p0,
            self.step,
            self.n_votes,
            self.n_samples,
            n_runs=self.runs,
            seed=self.seed,
            max_visits=self.max_visits,
        )
        print(f"Two answers, V = {self.n_votes}, K = {self.n_samples}, {self.runs} problems a cell")
        print(as_text(table))
        return 0
