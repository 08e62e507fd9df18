"""Read by every process of a run: most of its time is imports, which free nothing."""

import gc

gc.set_threshold(10_000)
