"""The guard of a run in compiled code: the bits of guard_core, at a fraction of its calls.

guard_core goes through some hundred array calls per batch, which is a cost of its own where a
batch has eight problems. It stays the single source of truth: `SimConfig.engine = "reference"`
takes it, the trace is the same to the last bit, and the tests hold the two against each other.
"""

from sim.compiled.guard import CompiledGuard

__all__ = ["CompiledGuard"]
