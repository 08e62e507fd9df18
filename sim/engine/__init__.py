"""The simulation of one configuration, batch by batch."""

from sim.settings.machine_code import use_own_cache

use_own_cache()
