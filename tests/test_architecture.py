"""Rules about the source itself: imports, docstrings, its packages, and totals that only fall.

`tests/rooms.py` has the tables of the imports between rooms.
"""

import ast
import collections
import fnmatch
import graphlib
import re
import subprocess
import sys
import tokenize
import tomllib

from tests.rooms import ALLOWED, JOB_IMPORTS, ROOMS
from tests.source_tree import ROOT, SOURCES, TESTS, module_name, python_files, tree_of

# These rooms compute with `keras.ops` alone, so they run on every backend.
WITHOUT_TENSORFLOW = {
    "config",
    "errors",
    "functional",
    "inference",
    "layers",
    "models",
    "stateless_random",
    "tasks",
}
# Modules of `tpu_kernels` that do not import JAX at their top. The others may, so no module may
# import those at its top.
WITHOUT_JAX = {
    "__init__",
    "attention_choice",
    "attention_plan",
    "inference_plan",
    "on_chip_attention",
}
# Recomputing activations needs the interface of each backend, and compiling a part needs that of
# TensorFlow.
FOR_EACH_BACKEND = {"txl_tf/layers/compiled_parts.py"}
# Modules that are loaded before TensorFlow, which takes seconds to import: the jobs check their
# arguments with them, and every worker process of a preparation loads them.
LOADED_FIRST = (
    "txl_tf",
    "txl_tf.config.*",
    "txl_tf.data.corpora",
    "txl_tf.data.preparation",
    "txl_tf.data.sources.*",
    "txl_tf.data.standard_library",
    "txl_tf.data.tokenizers.*",
    "txl_tf.data.vocabulary_training",
    "txl_tf.data.workers",
    "txl_tf.distribution.preemption",
    "txl_tf.distribution.server_address",
    "txl_tf.errors",
    "txl_tf.evaluation.result",
    "txl_tf.model_folder.*",
    "txl_tf.models.presets",
    "txl_tf.models.sizes",
    # The server answers while TensorFlow is imported.
    "txl_tf.serving.completion*",
    "txl_tf.serving.metrics",
    "txl_tf.serving.text_server",
    "txl_tf.storage.*",
    "txl_tf.tasks.*",
    "txl_tf.tpu_compiler.chips",
    "txl_tf.tpu_compiler.topologies",
    "txl_tf.tpu_kernels.attention_choice",
    "txl_tf.training.checkpoints.*",
    "txl_tf.training.figures",
    "txl_tf.training.ledger",
    "txl_tf.training.metrics_log",
    "pipelines",
    "pipelines.command_line",
    "pipelines.configs",
    "pipelines.jobs.*",
    "pipelines.launch.*",
    "pipelines.preparation.*",
    "pipelines.run.initial_weights",
    "pipelines.run.memory_needs",
    "pipelines.run.training_job",
    "pipelines.run.training_process",
    "pipelines.run.training_settings",
    "pipelines.shell.*",
)


def imported_by(path, tree=None):
    """Returns the full names of a module's imports, at any level of its code."""
    names = set()
    for node in ast.walk(tree or tree_of(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{full_name(path, node)}.{alias.name}" for alias in node.names}
    return names


def full_name(path, node):
    """Returns the full name of the module of a `from ... import`.

    Imports are absolute, except in `pipelines`, which has another name when it is installed.
    """
    parts = path.relative_to(ROOT).parts
    if parts[0] != "pipelines":
        assert node.level == 0, f"{path}: imports are absolute"
        return node.module
    if node.level == 0:
        assert node.module.partition(".")[0] != "pipelines", f"{path}: not its name when installed"
        return node.module
    return ".".join([*parts[: len(parts) - node.level], *filter(None, [node.module])])


def attributes_of(path):
    """Returns the dotted names that a module uses, such as `keras.src`."""
    return {
        ast.unparse(node) for node in ast.walk(tree_of(path)) if isinstance(node, ast.Attribute)
    }


def room_of(path):
    """Returns `layers` for `txl_tf/layers/feed_forward.py`, `errors` for `txl_tf/errors.py`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[1] if parts[0] == "txl_tf" else parts[0]


def starts_with(names, *prefixes):
    return sorted(
        name for name in names for prefix in prefixes if f"{name}.".startswith(f"{prefix}.")
    )


def is_public(node):
    return not node.name.startswith("_")


def offences(find, paths=SOURCES):
    """Returns the offences that `find` lists, by module; modules without any are left out."""
    by_module = {str(path.relative_to(ROOT)): find(path) for path in paths}
    return {module: offence for module, offence in by_module.items() if offence}


def test_imports_run_one_way():
    def against_the_order(path):
        if room_of(path) in ("pipelines", "__init__"):
            return []  # jobs may import all rooms, and the package names its public interface
        allowed = ALLOWED.get(room_of(path), set()) | {room_of(path)}
        names = starts_with(imported_by(path), "txl_tf")
        return [name for name in names if name.split(".")[1] not in allowed]

    assert offences(against_the_order) == {}


def test_rooms_of_the_jobs_import_one_way():
    def against_the_order(path):
        room = path.relative_to(ROOT / "pipelines").with_suffix("").parts[0]
        names = starts_with(imported_by(path), "pipelines")
        wrong = [name for name in names if name.split(".")[1] not in {room, *ROOMS.get(room, ())}]
        jobs = starts_with(names, "pipelines.jobs") if room == "jobs" else []
        return wrong + [name for name in jobs if name.split(".")[2] != JOB_IMPORTS.get(path.stem)]

    assert offences(against_the_order, python_files("pipelines")) == {}


def test_no_module_imports_itself_through_others():
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for path in SOURCES
        if path.stem != "__init__"
    }
    imports = {}
    for name, path in modules.items():
        names = imported_by(path)
        imports[name] = modules.keys() & (names | {each.rpartition(".")[0] for each in names})
    graphlib.TopologicalSorter(imports).prepare()  # raises CycleError, which names a circle


def test_every_room_of_the_package_has_a_place_in_the_order():
    rooms = {room_of(path) for path in python_files("txl_tf")} - {"__init__"}
    assert rooms - set(ALLOWED) == set()
    assert WITHOUT_TENSORFLOW - rooms == set()


def test_nothing_imports_the_tests_and_the_package_no_job():
    def forbidden(path):
        prefixes = ["tests"] if room_of(path) == "pipelines" else ["tests", "pipelines"]
        return starts_with(imported_by(path), *prefixes)

    assert offences(forbidden) == {}


def test_models_run_on_every_backend():
    def backends(path):
        is_special = str(path.relative_to(ROOT)) in FOR_EACH_BACKEND
        if is_special or room_of(path) not in WITHOUT_TENSORFLOW:
            return []
        return starts_with(imported_by(path), "tensorflow", "torch", "jax")

    assert offences(backends) == {}


def test_nothing_loads_jax_before_it_is_used():
    files = python_files("txl_tf/tpu_kernels")
    with_jax = {path.stem for path in files} - WITHOUT_JAX

    def loads(path):
        if path in files and path.stem in with_jax:
            return []
        imports = (ast.Import, ast.ImportFrom)
        tops = ast.Module([node for node in tree_of(path).body if isinstance(node, imports)], [])
        kernels = [f"txl_tf.tpu_kernels.{name}" for name in with_jax]
        return starts_with(imported_by(path, tops), "jax", *kernels)

    assert offences(loads) == {}


def test_no_private_or_unfinished_interfaces_of_keras():
    interfaces = (
        "keras.src",
        "keras.distribution",
        "tf_keras",
        "tf.keras",
        "tensorflow.keras",
        "tensorflow.python.keras",
    )

    def unwanted(path):
        names = starts_with(imported_by(path) | attributes_of(path), *interfaces)
        # `keras.distribution` is unfinished on TensorFlow only. On JAX it divides variables that
        # hold a memory.
        has_memory = path == ROOT / "txl_tf/layers/memory_variables.py"
        return [name for name in names if not has_memory or "distribution" not in name]

    assert offences(unwanted) == {}


def runs_data_as_code(path):
    modules = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"}
    if path.stem == "python2_vocabulary":
        modules.remove("pickle")  # for an unpickler with an allow-list
    offences_of_module = starts_with(imported_by(path), *modules)
    for call in (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call)):
        function = ast.unparse(call.func)
        if function in ("eval", "exec", "compile", "yaml.load", "pickle.load", "pickle.loads"):
            offences_of_module.append(function)
        loads_weights_only = ("weights_only", "True") in [
            (keyword.arg, ast.unparse(keyword.value)) for keyword in call.keywords
        ]
        if function == "torch.load" and not loads_weights_only:
            offences_of_module.append(function)
        for keyword in call.keywords:
            setting = (keyword.arg, ast.unparse(keyword.value))
            is_safe = setting in (("allow_pickle", "False"), ("safe_mode", "True"))
            if keyword.arg in ("allow_pickle", "safe_mode") and not is_safe:
                offences_of_module.append("=".join(setting))
    return offences_of_module


def test_no_data_is_ever_run_as_code():
    assert offences(runs_data_as_code) == {}


def test_every_public_class_and_function_says_what_it_is_for():
    def undocumented(path):
        tree = tree_of(path)
        definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        public = [node for node in tree.body if isinstance(node, definitions) and is_public(node)]
        names = [node.name for node in public if not ast.get_docstring(node)]
        return names if ast.get_docstring(tree) else ["the module", *names]

    assert offences(undocumented) == {}


def test_every_file_with_tests_is_found_by_pytest():
    for path in TESTS:
        has_tests = any(
            isinstance(node, ast.FunctionDef | ast.ClassDef)
            and node.name.lower().startswith("test_")
            for node in tree_of(path).body
        )
        assert has_tests == path.name.startswith("test_"), path


def test_no_module_imports_the_tests_of_another():
    names = {module_name(path) for path in TESTS if path.name.startswith("test_")}

    def other_tests(path):
        return starts_with(imported_by(path), *names - {module_name(path)})

    assert offences(other_tests, TESTS) == {}


def loaded_first():
    def matches(name, patterns):
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    names = {module_name(path) for path in SOURCES}
    named = {pattern for pattern in LOADED_FIRST if "*" not in pattern}
    assert named - names == set(), "the table names modules that are gone"
    return sorted(name for name in names if matches(name, LOADED_FIRST))


def test_what_is_loaded_before_tensorflow_does_not_import_it():
    program = (
        "import importlib, sys\n"
        f"for name in {loaded_first()!r}:\n"
        "    importlib.import_module(name)\n"
        "    if {'tensorflow', 'keras', 'jax'} & set(sys.modules):\n"
        "        sys.exit(name)\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert finished.returncode == 0, finished.stderr


def test_every_package_is_installed_and_none_is_called_pipelines():
    """A folder that is missing in the list would be missing in the wheel only."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packages = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in SOURCES
        if path.name == "__init__.py"
    }
    installed = {re.sub(r"^pipelines\b", "txl_tf_pipelines", name) for name in packages}
    assert installed == set(settings["packages"])
    assert settings["package-dir"] == {"txl_tf_pipelines": "pipelines"}


def test_a_folder_has_few_modules():
    counts = collections.Counter(path.parent for path in SOURCES if path.name != "__init__.py")
    assert counts.pop(ROOT / "pipelines" / "jobs") <= 20
    assert max(counts.values()) <= 14, counts


# Totals that may only fall. A change that lowers a total lowers its number here too, and a feature
# that adds lines removes others. Logical lines are counted, because formatting changes none.
MOST_SOURCE_LINES = 20_500
MOST_TEST_LINES = 15_850
MOST_MARKER_PHRASES = 3.0
MOST_MARKER_PHRASES_OF_TESTS = 8.0
"""Per 10,000 words of docstrings and comments."""

# Phrases that a plainer word replaces.
MARKER_PHRASES = re.compile(
    r"\b(of it|of which|whoever|nobody|so many|what is|that of|those of|by itself|as of|is none"
    r"|anew|none of|all that|at hand|takes? up|go(es)? on|is one of|there is none|of a kind"
    r"|once more|that there is|what (it|(a|the) \w+) (is|has|takes|gives|says))\b",
    re.IGNORECASE,
)


def words_of(path):
    """Returns the docstrings and comments of a file, as one text."""
    nodes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [ast.get_docstring(each) for each in ast.walk(tree_of(path)) if isinstance(each, nodes)]
    with path.open("rb") as file:
        tokens = list(tokenize.tokenize(file.readline))
    texts += [token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT]
    return " ".join(" ".join(filter(None, texts)).split())


def num_logical_lines(path):
    """Counts statements and headers of blocks. A docstring is one line, a comment is none."""
    with path.open("rb") as file:
        return sum(token.type == tokenize.NEWLINE for token in tokenize.tokenize(file.readline))


def test_totals_only_fall():
    def count_lines(paths):
        return sum(num_logical_lines(path) for path in paths)

    def phrase_rate(paths):
        texts = [words_of(path) for path in paths]
        num_phrases = sum(len(MARKER_PHRASES.findall(text)) for text in texts)
        return 10_000 * num_phrases / sum(len(text.split()) for text in texts)

    assert count_lines(SOURCES) <= MOST_SOURCE_LINES
    assert count_lines(TESTS) <= MOST_TEST_LINES
    assert phrase_rate(SOURCES) <= MOST_MARKER_PHRASES
    assert phrase_rate(TESTS) <= MOST_MARKER_PHRASES_OF_TESTS
