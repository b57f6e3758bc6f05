"""Writes the pages of the public interface: `python .github/pages.py FOLDER` (needs pdoc)."""

import sys
from pathlib import Path

import pdoc

import txl_tf

packages = [txl_tf]
for package in packages:
    for name in package.__all__:
        # pdoc does not call the `__getattr__` that imports a name on first use.
        vars(package)[name] = found = getattr(package, name)
        if hasattr(found, "__path__"):
            packages.append(found)
pdoc.render.configure(docformat="google", search=True)
pdoc.pdoc("txl_tf", output_directory=Path(sys.argv[1]))
