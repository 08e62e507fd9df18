"""`python -m sim` is `guard-sim`."""

import sys

from sim.cli import main

sys.exit(main())
