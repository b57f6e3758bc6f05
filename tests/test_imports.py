"""Names are imported on first use, and errors name a package that is missing."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

import txl_tf
import txl_tf.convert
import txl_tf.data
import txl_tf.tasks
from pipelines.command_line import main
from tests.source_tree import ROOT
from txl_tf import imports
from txl_tf.errors import BackendError, UsageError
from txl_tf.imports import require_extra

LAZY_PACKAGES = [txl_tf, txl_tf.convert, txl_tf.data, txl_tf.tasks]


@pytest.mark.parametrize("package", LAZY_PACKAGES, ids=lambda package: package.__name__)
def test_a_stub_names_the_module_of_each_definition(package):
    """Type checkers follow the imports of a stub, so a stub must import from these modules."""
    assert set(package.__all__) <= set(dir(package))
    for statement in ast.parse(Path(f"{package.__file__}i").read_text()).body:
        if isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                assert alias.asname == alias.name
                value = getattr(package, alias.name)
                module = getattr(value, "__module__", None) or value.__name__.rpartition(".")[0]
                assert module == statement.module, alias.name
    with pytest.raises(AttributeError, match=f"'{package.__name__}' has no attribute 'absent'"):
        _ = package.absent


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    require_extra("convert", "numpy", purpose="A file")
    with pytest.raises(UsageError) as error:
        require_extra("convert", "numpy", "safetensors", "not_there", purpose="A file", where="f")
    assert str(error.value).splitlines() == [
        "A file needs safetensors and not_there, which are not installed.",
        "f",
        "Install the extra in the checkout: pip install -e '.[convert]'",
    ]
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)
    with pytest.raises(UsageError, match="tokenizers need tensorflow_text"):
        _ = imports.tensorflow_text.Tokenizer


@pytest.mark.parametrize("name", ["load", "generate", "export_saved_model"])
def test_another_backend_of_keras_is_named(name, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    with pytest.raises(BackendError, match=r"is torch; .*\nKERAS_BACKEND in the environment\n"):
        getattr(txl_tf, name)


def test_a_job_on_another_backend_ends_with_a_sentence(monkeypatch, capsys):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    assert main(["generate", "--workdir", "runs/mine", "--prompt", "t"]) == 78
    assert "txl: The backend of Keras is torch; " in capsys.readouterr().err


def test_errors_name_extras_of_the_checkout_that_exist():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    sources = [*(ROOT / "txl_tf").rglob("*.py"), *(ROOT / "pipelines").rglob("*.py")]
    text = "".join(path.read_text() for path in sources)
    named = set(re.findall(r'(?:require_extra\(\s*|\bextra = )"([a-z-]+)"', text))
    named |= set(re.findall(r'(?:\bextra = .*|is_on_jax\(\)) else "([a-z-]+)"', text))
    # No error needs these: without `tpu-kernel`, attention uses plain operations.
    without_error = {"all", "test", "tpu-kernel"}
    assert named == set(project["optional-dependencies"]) - without_error
    assert "txl-tf[" not in text
