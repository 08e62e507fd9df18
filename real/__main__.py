"""`python -m real`."""

import sys

from real.cli import main

if __name__ == "__main__":
    sys.exit(main())
