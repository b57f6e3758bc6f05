import tomllib
from pathlib import Path

import pytest

from pipelines.diagnosis.tested_versions import TestedVersions
from pipelines.diagnosis.version_number import canonical
from txl_tf.errors import MismatchError

ROOT = Path(__file__).resolve().parents[3]
METADATA = """\
Metadata-Version: 2.4
Name: txl-tf
Version: 0.1.0
Requires-Python: >=3.11,<3.14
Requires-Dist: keras==3.15.1
Requires-Dist: ml_dtypes==0.6.0
Provides-Extra: tpu-compile
Requires-Dist: libtpu==0.0.31; extra == "tpu-compile"
Requires-Dist: jax==0.10.2; extra == "tpu-compile"
"""


def test_every_pin_of_the_project_is_read():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    tested = TestedVersions.read()

    assert [f"{name}=={version}" for name, version in tested.packages.items()] == [
        f"{canonical(pin.split('==')[0])}=={pin.split('==')[1]}" for pin in project["dependencies"]
    ]
    assert f"libtpu=={tested.libtpu}" in project["optional-dependencies"]["tpu-compile"]
    assert tested.python == project["requires-python"]


def test_an_installed_package_knows_its_pins_without_the_source(tmp_path, monkeypatch):
    installed = tmp_path / "txl_tf-0.1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(METADATA)
    monkeypatch.syspath_prepend(tmp_path)

    tested = TestedVersions.read(tmp_path / "pyproject.toml")

    assert tested.packages == {"keras": "3.15.1", "ml-dtypes": "0.6.0"}
    assert tested.libtpu == "0.0.31"
    assert tested.python == ">=3.11,<3.14"


def test_the_project_of_somebody_else_is_not_taken_for_this_one(tmp_path, monkeypatch):
    source = tmp_path / "pyproject.toml"
    source.write_text('[project]\nname = "other"\n')
    monkeypatch.setattr("sys.path", [])

    with pytest.raises(MismatchError, match="pip install"):
        TestedVersions.read(source)
