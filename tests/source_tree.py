"""Modules of this repository: their paths, names and syntax trees."""

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def python_files(folder):
    return sorted((ROOT / folder).rglob("*.py"))


SOURCES = python_files("txl_tf") + python_files("pipelines")
TESTS = python_files("tests")


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text())


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
