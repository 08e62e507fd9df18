"""The simulated model: populations, policies, votes and observations."""

from sim.settings.machine_code import use_own_cache

use_own_cache()
