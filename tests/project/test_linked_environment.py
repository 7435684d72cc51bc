"""The environment for the tests of the wheel has what the project declares, and nothing else."""

from importlib.metadata import PackageNotFoundError, distribution

import pytest

from tests import linked_environment
from tests.linked_environment import PROJECT, needed


def names(*requirements: str) -> set[str]:
    return {package.name for package in needed(requirements)}


def test_the_packages_are_those_that_the_project_declares_and_those_that_these_need():
    found = names(PROJECT)
    assert {"torch", "transformers", "numpy", "tokenizers", "jinja2"} <= {name.lower() for name in found}
    assert not {"peft", "tensorflow", "tensorflow-cpu", "pytest", "coverage", "gradio"} & found


def test_an_extra_brings_what_it_needs():
    assert "peft" in names(f"{PROJECT}[test]")
    assert {"fsspec", "aiohttp"} <= names("fsspec[http]") and "aiohttp" not in names("fsspec")


def test_a_package_that_is_not_installed_is_an_error():
    with pytest.raises(PackageNotFoundError, match="no-such-package"):
        names("no-such-package>=1")


def test_packages_are_linked_and_the_project_is_not(tmp_path):
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    linked_environment.main([str(tmp_path)])
    torch = distribution("torch")
    assert (packages / "torch" / "__init__.py").samefile(torch.locate_file("torch/__init__.py"))
    assert [*packages.glob("torch-*.dist-info")] and [*packages.glob("pytest")]
    assert not [path for path in packages.iterdir() if "elmo" in path.name or path.name in {"modeling", "peft"}]
