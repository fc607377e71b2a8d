"""`python -m workspaces.runtime serve|bridge`: the same entry as the zipapp's."""

import sys

from .entry import main

sys.exit(main(sys.argv[1:]))
