"""Exact and closed-form theory of answers under votes, to check the simulator against."""

from sim.theory.chain import (
    detection,
    flip_law,
    flip_rate_by_visit,
    lock_in,
    windows,
    wrong_by_visit,
)
from sim.theory.flow import (
    Coupling,
    collapse,
    critical_coupling,
    mean_field,
    memory_crossing,
    memory_wrong,
    plurality,
    replicator,
)
from sim.theory.process import Process
from sim.theory.tables import own_steps, regime_chart

__all__ = [
    "Coupling",
    "Process",
    "collapse",
    "critical_coupling",
    "detection",
    "flip_law",
    "flip_rate_by_visit",
    "lock_in",
    "mean_field",
    "memory_crossing",
    "memory_wrong",
    "own_steps",
    "plurality",
    "regime_chart",
    "replicator",
    "windows",
    "wrong_by_visit",
]
