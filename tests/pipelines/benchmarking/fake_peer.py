"""Python of a peer that is not installed here: it answers as `turn_server` does."""

import stat
import sys

_PROGRAM = """#!{python}
import json, sys
request = json.loads(sys.stdin.readline())
print("noise of a library", file=sys.stderr)
if request.get("dtype") in {failing!r} or request.get("jit_compile"):
    sys.exit("no such precision here")
seconds = {{"float32": 0.5, "bfloat16": 0.25}}.get(request.get("dtype"), 1.0)
print(json.dumps({{"peak_bytes": 1 << 20}}), flush=True)
for line in sys.stdin:
    tokens = int(line) * request["num_rows"]
    answer = {{"seconds": int(line) * seconds, "tokens": tokens, "peak_bytes": 1 << 20}}
    print(json.dumps(answer), flush=True)
"""


def write_fake_python(folder, failing=()):
    """Writes a program that takes the place of a Python with a peer.

    Args:
        folder: path.
        failing: precisions in which it ends at once; in "bfloat16" it is twice as fast.
    """
    path = folder / "python-of-peer"
    path.write_text(_PROGRAM.format(python=sys.executable, failing=tuple(failing)))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)
