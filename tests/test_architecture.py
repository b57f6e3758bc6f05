"""Rules about the source itself: who imports whom, sizes, documentation."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 60

# What the parts of the package may import of each other; every part may import itself.
LOWEST = {"errors", "imports", "json_text", "machine_memory"}
MODELS = {
    "config",
    "functional",
    "layers",
    "models",
    "rematerialization",
    "vocabulary_clusters",
    *LOWEST,
}
ALLOWED = {
    "errors": set(),
    "durability": set(),
    "imports": {"errors"},
    "store_client": set(),
    "local_files": LOWEST,
    "file_storage": {"durability", "local_files", "store_client", *LOWEST},
    "writable_folder": {"file_storage", "local_files", *LOWEST},
    "lock_owner": LOWEST,
    "local_lock": {"file_storage", "local_files", "lock_owner", *LOWEST},
    "store_lock": {"file_storage", "lock_owner", *LOWEST},
    "json_text": set(),
    "machine_memory": LOWEST,
    "untrusted_files": {"file_storage", "json_text", *LOWEST},
    "array_archive": set(),
    "tensor_bundle": {"file_storage", "untrusted_files", *LOWEST},
    "directory_lock": {
        "file_storage",
        "local_lock",
        "lock_owner",
        "store_lock",
        "writable_folder",
        *LOWEST,
    },
    "config": LOWEST,
    "functional": LOWEST,
    "vocabulary_clusters": LOWEST,
    "rematerialization": LOWEST,
    "cluster_loop": {"functional", "vocabulary_clusters", *LOWEST},
    "layers": {"cluster_loop", "functional", "vocabulary_clusters", *LOWEST},
    "samplers": {"functional", *LOWEST},
    "models": MODELS,
    "inference": MODELS,
    "data": {"config", "durability", "file_storage", "local_files", "untrusted_files", *LOWEST},
    "distribution": {"config", "local_files", *LOWEST},
    # The TensorBoard writer takes the result of an evaluation.
    "training": {
        "distribution",
        "durability",
        "evaluation",
        "file_storage",
        "store_client",
        "tensor_bundle",
        "untrusted_files",
        "writable_folder",
        *MODELS,
    },
    "unallocated_variables": set(),
    "evaluation": {"inference", "unallocated_variables", *MODELS},
    "serving": {"file_storage", "untrusted_files", *LOWEST},
    "generation": {
        "array_archive",
        "directory_lock",
        "durability",
        "file_storage",
        "inference",
        "samplers",
        "untrusted_files",
        *MODELS,
    },
    "export": {
        "data",
        "durability",
        "file_storage",
        "inference",
        "samplers",
        "untrusted_files",
        *MODELS,
    },
    "convert": {
        "array_archive",
        "durability",
        "file_storage",
        "tensor_bundle",
        "untrusted_files",
        *MODELS,
    },
    "tpu_compiler": {"distribution", "evaluation", "training", "unallocated_variables", *MODELS},
}
WITHOUT_TENSORFLOW = {
    "cluster_loop",
    "config",
    "errors",
    "functional",
    "inference",
    "layers",
    "models",
    "samplers",
    "vocabulary_clusters",
}
# `errors` is a table of exit codes, best read in one piece.
SEVERAL_CLASSES = {
    "txl_tf/errors.py",
    "txl_tf/generation/decoding.py",
    "txl_tf/inference/blocks.py",
    "txl_tf/inference/memory.py",
}


def python_files(folder):
    return sorted((ROOT / folder).rglob("*.py"))


SOURCES = python_files("txl_tf") + python_files("pipelines")
TESTS = python_files("tests")


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text())


def imported_by(path):
    """Full names of all that a module imports, wherever in the module."""
    names = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def attributes_of(path):
    """Dotted names that a module uses, such as `keras.src`."""
    return {
        ast.unparse(node) for node in ast.walk(tree_of(path)) if isinstance(node, ast.Attribute)
    }


def part_of(path):
    """`layers` for `txl_tf/layers/feed_forward.py`, `export` for `txl_tf/export.py`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[1] if parts[0] == "txl_tf" else parts[0]


def starts_with(names, *prefixes):
    return sorted(
        name for name in names for prefix in prefixes if f"{name}.".startswith(f"{prefix}.")
    )


def is_public(node):
    return not node.name.startswith("_")


def offences(find, paths=SOURCES):
    """What a rule finds in each module; nothing, where all is well."""
    found = {str(path.relative_to(ROOT)): find(path) for path in paths}
    return {name: offence for name, offence in found.items() if offence}


def test_imports_run_one_way():
    def against_the_order(path):
        if part_of(path) in ("pipelines", "__init__"):
            return []  # the jobs put everything together, and the package names what is public
        allowed = ALLOWED.get(part_of(path), set()) | {part_of(path)}
        names = starts_with(imported_by(path), "txl_tf")
        return [name for name in names if name.split(".")[1] not in allowed]

    assert offences(against_the_order) == {}


def test_every_part_of_the_package_has_a_place_in_the_order():
    parts = {part_of(path) for path in python_files("txl_tf")} - {"__init__"}
    assert parts - set(ALLOWED) == set()
    assert WITHOUT_TENSORFLOW - parts == set()


def test_nothing_imports_the_tests_and_the_package_no_job():
    def forbidden(path):
        prefixes = ["tests"] if part_of(path) == "pipelines" else ["tests", "pipelines"]
        return starts_with(imported_by(path), *prefixes)

    assert offences(forbidden) == {}


def test_models_run_on_every_backend():
    def backends(path):
        if part_of(path) not in WITHOUT_TENSORFLOW:
            return []
        return starts_with(imported_by(path), "tensorflow", "torch", "jax")

    assert offences(backends) == {}


def test_no_private_or_unfinished_interfaces_of_keras():
    interfaces = (
        "keras.src",
        "keras.distribution",
        "tf_keras",
        "tf.keras",
        "tensorflow.keras",
        "tensorflow.python.keras",
    )

    assert (
        offences(lambda path: starts_with(imported_by(path) | attributes_of(path), *interfaces))
        == {}
    )


def runs_data_as_code(path):
    modules = ("pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve")
    found = starts_with(imported_by(path), *modules)
    for call in (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call)):
        function = ast.unparse(call.func)
        if function in ("eval", "exec", "compile", "yaml.load"):
            found.append(function)
        loads_weights_only = ("weights_only", "True") in [
            (keyword.arg, ast.unparse(keyword.value)) for keyword in call.keywords
        ]
        if function == "torch.load" and not loads_weights_only:
            found.append(function)
        for keyword in call.keywords:
            setting = (keyword.arg, ast.unparse(keyword.value))
            is_safe = setting in (("allow_pickle", "False"), ("safe_mode", "True"))
            if keyword.arg in ("allow_pickle", "safe_mode") and not is_safe:
                found.append("=".join(setting))
    return found


def test_no_data_is_ever_run_as_code():
    assert offences(runs_data_as_code) == {}


def test_modules_are_short_enough_to_read():
    def too_long(path):
        lines = len(path.read_text().splitlines())
        return lines if lines > MAX_MODULE_LINES else 0

    assert offences(too_long, SOURCES + TESTS) == {}


def code_lines(node):
    """Lines of a function without its docstring."""
    first = node.body[0]
    docstring = 0
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        docstring = first.end_lineno - first.lineno + 1
    return node.end_lineno - node.lineno + 1 - docstring


def test_functions_are_short_enough_to_read():
    def too_long(path):
        functions = [
            node
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        return {
            node.name: code_lines(node)
            for node in functions
            if code_lines(node) > MAX_FUNCTION_LINES
        }

    assert offences(too_long) == {}


def test_every_public_class_and_function_says_what_it_is_for():
    def undocumented(path):
        tree = tree_of(path)
        definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        public = [node for node in tree.body if isinstance(node, definitions) and is_public(node)]
        names = [node.name for node in public if not ast.get_docstring(node)]
        return names if ast.get_docstring(tree) else ["the module", *names]

    assert offences(undocumented) == {}


def test_a_module_of_the_package_has_one_public_class():
    def further_classes(path):
        if str(path.relative_to(ROOT)) in SEVERAL_CLASSES:
            return []
        classes = [node for node in tree_of(path).body if isinstance(node, ast.ClassDef)]
        names = [node.name for node in classes if is_public(node)]
        return names if len(names) > 1 else []

    assert offences(further_classes, python_files("txl_tf")) == {}


def test_every_file_with_tests_is_found_by_pytest():
    for path in TESTS:
        has_tests = any(
            isinstance(node, ast.FunctionDef | ast.ClassDef)
            and node.name.lower().startswith("test_")
            for node in tree_of(path).body
        )
        assert has_tests == path.name.startswith("test_"), path


@pytest.mark.parametrize("module", ["txl_tf", "txl_tf.config.experiment", "txl_tf.errors"])
def test_reading_a_configuration_does_not_start_tensorflow(module):
    assert_imports_without_tensorflow(module)


def test_the_command_line_does_not_start_tensorflow():
    assert_imports_without_tensorflow("pipelines.command_line")


def assert_imports_without_tensorflow(module):
    program = f"import sys, {module}; print({{'tensorflow', 'keras'}} & set(sys.modules))"
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert finished.stdout.strip() == "set()", finished.stderr
