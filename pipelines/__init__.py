"""The jobs of the `txl` command, one module each."""

import os
import sys

# Python says `-m` while it looks for the module to run: this process is a job, from now on.
if sys.argv and (sys.argv[0] == "-m" or os.path.basename(sys.argv[0]) == "txl"):
    from pipelines.last_defence import guard_process

    guard_process()
