"""The jobs of the `txl` command, one module each.

Installed, the package is called `txl_tf_pipelines`, for `pipelines` is a name that others use too:
so its modules import each other by relative names.
"""

import os
import sys

# Python says `-m` while it looks for the module to run: this process is a job, from now on.
if sys.argv and (sys.argv[0] == "-m" or os.path.basename(sys.argv[0]) == "txl"):
    from .last_defence import guard_process

    guard_process()
