"""Examples in Python that docstrings and pages show."""

import ast
import re

from tests.source_tree import SOURCES, module_name, tree_of

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)
_FENCED = re.compile(r"```python\n(.*?)```", re.DOTALL)


def blocks_of_python(text):
    """Returns the code of each fenced block of Python, in their order."""
    return _FENCED.findall(text)


def examples_of_docstrings():
    """Returns the last block of Python of each docstring, by the full name of its definition."""
    result = {}
    # Every test process calls this function, and parsing all sources takes seconds.
    for path in (path for path in SOURCES if "```python" in path.read_text()):
        for node in ast.walk(tree_of(path)):
            docstring = ast.get_docstring(node) if isinstance(node, _DOCUMENTED) else None
            for code in blocks_of_python(docstring or ""):
                result[f"{module_name(path)}.{getattr(node, 'name', '')}"] = code
    return result
