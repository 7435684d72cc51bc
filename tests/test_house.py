"""What the files around the code say of it, and of each other, is so."""

import ast
import re
import runpy
import shlex
import sys
from importlib.metadata import packages_distributions
from pathlib import Path
from unittest.mock import patch

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT


DOCS = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/*.md"))
GUIDES = ["README.md", "CONTRIBUTING.md", "benchmarks/README.md", *DOCS]


@pytest.fixture(scope="module")
def package() -> dict:
    """The arguments that setup.py gives to `setup`."""
    with patch("setuptools.setup") as setup:
        runpy.run_path(str(ROOT / "setup.py"))
    return setup.call_args.kwargs


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(guide: str, language: str) -> list[str]:
    """The guide's fenced blocks in that language."""
    return re.findall(rf"^```{language}\n(.*?)^```", read(guide), flags=re.DOTALL | re.MULTILINE)


def commands(guide: str) -> list[list[str]]:
    """The words of each command in the guide's bash blocks, continued lines joined, comments dropped."""
    lines = "\n".join(blocks(guide, "bash")).replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", read("Makefile"), flags=re.MULTILINE))


def test_the_version_is_the_same_wherever_it_stands(package):
    newest = re.search(r"^## \[(\d[^\]]*)\]", read("CHANGELOG.md"), flags=re.MULTILINE).group(1)
    assert package["version"] == newest == str(yaml.safe_load(read("CITATION.cff"))["version"])


def test_each_direct_dependency_is_pinned_within_its_range(package):
    lines = [line.partition("#")[0].strip() for line in read("constraints.txt").splitlines()]
    pins = {canonicalize_name(pin.name): pin for pin in map(Requirement, filter(None, lines))}
    extras = [requirement for extra in package["extras_require"].values() for requirement in extra]
    for needed in map(Requirement, package["install_requires"] + extras):
        (pin,) = pins[canonicalize_name(needed.name)].specifier
        assert pin.operator == "==" and needed.specifier.contains(pin.version), f"{needed} against {pin}"


def test_every_script_at_the_root_is_installed(package):
    assert sorted(package["py_modules"]) == sorted(path.stem for path in ROOT.glob("*.py") if path.stem != "setup")
    assert all((ROOT / name).is_dir() for name in package["packages"])


def test_what_a_module_imports_on_load_is_required_by_setup(package):
    required = {canonicalize_name(Requirement(line).name) for line in package["install_requires"]}
    distributions = packages_distributions()
    own = {*package["packages"], *package["py_modules"]}
    files = [ROOT / f"{name}.py" for name in package["py_modules"]]
    files += [path for name in package["packages"] for path in (ROOT / name).rglob("*.py")]
    for path in files:
        for name in imported_packages(path) - own - sys.stdlib_module_names:
            providers = {canonicalize_name(provider) for provider in distributions.get(name, [name])}
            assert providers & required, f"{path.relative_to(ROOT)} imports {name}, which setup.py does not require"


def imported_packages(path: Path) -> set[str]:
    """The top-level packages that the file imports when it is loaded; imports inside functions wait."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    plain = {alias.name for node in body if isinstance(node, ast.Import) for alias in node.names}
    relative_free = {node.module for node in body if isinstance(node, ast.ImportFrom) and node.level == 0}
    return {name.partition(".")[0] for name in plain | relative_free}


def test_each_extra_that_a_guide_installs_exists(package):
    installs = [words for guide in GUIDES for words in commands(guide) if "pip" in words]
    extras = {extra for words in installs for word in words for extra in re.findall(r"^\.\[(.*)\]$", word)}
    assert extras and extras <= package["extras_require"].keys()


def test_the_package_indexs_page_has_no_link_that_only_the_repository_follows(package):
    page = package["long_description"]
    assert re.findall(r"\]\((?!https?:)", page) == [] and "](https://" in page
    assert "| BERT | loading and saving" in page


def test_continuous_integration_runs_targets_that_exist_and_the_suite_last():
    (line,) = re.findall(r"^make .*", read(".ci/run"), flags=re.MULTILINE)
    called = [word for word in line.split()[1:] if not word.startswith("-")]
    assert called == ["lint", "test-clients", "test"] and {*called, "demo"} <= make_targets()


def test_commands_without_make_are_those_of_the_makefile():
    exports = dict(re.findall(r"^demo .*: export (\w+) = (\w+)$", read("Makefile"), flags=re.MULTILINE))
    runs = re.findall(r"^\t\$\(BIN\)/(python -m (?:pytest|demo).*)$", read("Makefile"), flags=re.MULTILINE)
    runs = [run.replace("$(WORKERS)", "2") for run in runs]
    (windows,) = blocks("README.md", "powershell")
    assert rf".venv\Scripts\{runs[0]}" in windows.splitlines()
    assert r".venv\Scripts\python -m pip install -c constraints.txt -e ." in windows.splitlines()
    for run in runs[1:]:
        words = [f"{name}={value}" for name, value in exports.items()] + run.split()
        assert words in commands("CONTRIBUTING.md")


def test_only_the_benchmarks_need_unix(package):
    of_unix = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
    files = [path for name in ("demo", *package["packages"]) for path in (ROOT / name).rglob("*.py")]
    for path in [*files, *(ROOT / f"{name}.py" for name in package["py_modules"])]:
        assert not imported_packages(path) & of_unix, path


def test_the_suite_needs_nothing_of_the_clients(package):
    clients = {canonicalize_name(Requirement(line).name) for line in package["extras_require"]["clients"]}
    users = [
        path.relative_to(ROOT / "tests")
        for path in (ROOT / "tests").rglob("*.py")
        if clients & {canonicalize_name(name) for name in imported_packages(path)}
    ]
    assert users and {path.parts[0] for path in users} == {"clients"}
