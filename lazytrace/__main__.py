"""`python -m lazytrace`."""

import sys

from lazytrace.cli import main

if __name__ == "__main__":
    sys.exit(main())
