"""The simulation of one configuration, batch by batch."""

from guard_core.machine_code import use_own_cache
from sim.settings.machine_code import PACKAGES

use_own_cache(*PACKAGES)
