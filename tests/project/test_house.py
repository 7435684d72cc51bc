"""What the files around the code say of it, and of each other, is so."""

import ast
import gc
import importlib
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from unittest.mock import patch

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from setuptools import find_packages

from elmo_gpt_bert import __version__
from tests.conftest import ROOT


DOCS = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/*.md"))
GUIDES = ["README.md", "README.zh.md", "CONTRIBUTING.md", "benchmarks/README.md", "checkpoints/README.md", *DOCS]

# Lines of code: without blank lines, comments and docstrings, of functions also without the list of parameters. What
# is longer has its length here, which may only fall.
LONGEST_FUNCTION = 40
LONGER_FUNCTIONS = {"tests/models/test_hub.py: push": 53}
LONGEST_FILE = 500
LONGER_FILES = {"tests/convert/test_convert_elmo.py": 518}

# The modules of elmo_gpt_bert/training, each of which imports only from those before it.
ROOMS = (
    "errors",
    "files",
    "memory",
    "processes",
    "output_folder",
    "arguments",
    "command_line",
    "flags",
    "results",
)
ROOMS += ("optimization", "identity", "batches", "log", "launching", "loading")
ROOMS += ("task", "checkpoints", "loop", "reporting", "runs")

COMMANDS = ["zoo-app", "zoo-extract", "zoo-reproduce"]  # of modules of the package
COMMANDS += [f"zoo-convert-{name}" for name in ("bert", "elmo", "gpt", "vectors")]
SCRIPTS = sorted(path.stem for path in ROOT.glob("*.py") if path.stem != "setup")

# Each folder imports from itself and from those behind it; scripts are the files at the root.
FLOORS = ("tests", "demo", "examples", "benchmarks", "scripts", "reproduction", "explorer", "analysis", "convert")
FLOORS += ("tasks", "training", "metrics", "modeling")
PACKAGE = "elmo_gpt_bert"  # the folder of those that are not at the root of the repository
FOLDERS = (PACKAGE, "modeling")  # that an installation brings

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module", autouse=True)
def _trees() -> Iterator[None]:
    """Of all files, which are parsed once, and then let go. Garbage collection would search them again and again."""
    gc.disable()
    yield
    tree.cache_clear()
    gc.enable()


@pytest.fixture(scope="module")
def package() -> dict:
    """What pyproject.toml says of the package."""
    return PYPROJECT["project"]


def requirements(package: dict, extra: str = "") -> list[Requirement]:
    """What the package needs, or what an extra adds, with what other extras bring to it."""
    lines = package["optional-dependencies"][extra] if extra else package["dependencies"]
    direct = list(map(Requirement, lines))
    brought = [needed for each in direct if each.name == package["name"] for needed in each.extras]
    direct = [each for each in direct if each.name != package["name"]]
    return [*direct, *(needed for name in brought for needed in requirements(package, name))]


def run_setup(path: Path) -> dict:
    """The arguments that the setup.py gives to `setup`."""
    with patch("setuptools.setup") as setup:
        runpy.run_path(str(path))
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


def test_the_version_is_the_same_wherever_it_stands():
    newest = re.search(r"^## \[(\d[^\]]*)\]", read("CHANGELOG.md"), flags=re.MULTILINE).group(1)
    assert PYPROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": f"{PACKAGE}.__version__"}
    assert __version__ == newest == str(yaml.safe_load(read("CITATION.cff"))["version"])


def test_the_authors_and_the_licence_of_the_package_are_those_to_cite(package):
    citation = yaml.safe_load(read("CITATION.cff"))
    assert package["authors"] == citation["authors"] and package["license"] == citation["license"]


def test_scripts_that_run_from_a_url_ask_for_this_version_of_the_package(package):
    for name in SCRIPTS:
        opening, python, dependency, end = read(f"{name}.py").splitlines()[:4]
        assert (opening, end) == ("# /// script", "# ///"), name
        assert python == f'# requires-python = "{package["requires-python"]}"'
        (needed,) = map(Requirement, ast.literal_eval(dependency.removeprefix("# dependencies = ")))
        assert (needed.name, str(needed.specifier)) == (package["name"], f"=={__version__}")
        assert needed.extras <= package["optional-dependencies"].keys()


def test_each_direct_dependency_is_pinned_within_its_range(package):
    lines = [line.partition("#")[0].strip() for line in read("constraints.txt").splitlines()]
    pins = {canonicalize_name(pin.name): pin for pin in map(Requirement, filter(None, lines))}
    for needed in (each for extra in ("", *package["optional-dependencies"]) for each in requirements(package, extra)):
        (pin,) = pins[canonicalize_name(needed.name)].specifier
        assert pin.operator == "==" and needed.specifier.contains(pin.version), f"{needed} against {pin}"


def test_every_script_at_the_root_has_a_command_and_each_command_its_function(package):
    commands = package["scripts"]
    assert {f"zoo-{name.replace('_', '-')}" for name in SCRIPTS} == commands.keys() - {*COMMANDS}
    for place in commands.values():
        module, function = place.split(":")
        assert callable(getattr(importlib.import_module(module), function))


def test_the_names_that_an_installation_brings_are_those_of_this_project():
    packages = find_packages(str(ROOT), **PYPROJECT["tool"]["setuptools"]["packages"]["find"])
    assert {name.partition(".")[0] for name in packages} == {*FOLDERS}
    assert "py-modules" not in PYPROJECT["tool"]["setuptools"]


def test_what_a_module_imports_on_load_is_required_by_the_package(package):
    required = {canonicalize_name(needed.name) for needed in requirements(package)}
    distributions = packages_distributions()
    own = {*FOLDERS, *SCRIPTS}
    files = [ROOT / f"{name}.py" for name in SCRIPTS]
    files += [path for name in FOLDERS for path in (ROOT / name).rglob("*.py")]
    for path in files:
        for name in imported_packages(path) - own - sys.stdlib_module_names:
            providers = {canonicalize_name(provider) for provider in distributions.get(name, [name])}
            assert providers & required, f"{path.relative_to(ROOT)} imports {name}, which is not required"


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported_packages(path: Path) -> set[str]:
    """The top-level packages that the file imports when it is loaded; imports inside functions wait."""
    body = tree(path).body
    plain = {alias.name for node in body if isinstance(node, ast.Import) for alias in node.names}
    relative_free = {node.module for node in body if isinstance(node, ast.ImportFrom) and node.level == 0}
    return {name.partition(".")[0] for name in plain | relative_free}


def test_each_extra_that_a_guide_installs_exists(package):
    installs = [words for guide in GUIDES for words in commands(guide) if "pip" in words]
    extras = {extra for words in installs for word in words for extra in re.findall(r"^\.\[(.*)\]$", word)}
    assert extras and extras <= package["optional-dependencies"].keys()


# Length, and who imports whom


def sources() -> list[Path]:
    """The files of Python: the scripts, setup.py, and those of all folders."""
    folders = [*FOLDERS, "benchmarks", "demo", "examples", "tests"]
    files = [*ROOT.glob("*.py"), *(path for folder in folders for path in (ROOT / folder).rglob("*.py"))]
    return [path for path in files if "output" not in path.parts]  # demo/output has the code of a saved model


def statements_and_long_expressions(node: ast.AST) -> Iterator[ast.AST]:
    """All statements in `node`, and what else has several lines: a tenth of what there is."""
    for child in ast.iter_child_nodes(node):
        spans_lines = not hasattr(child, "lineno") or child.end_lineno > child.lineno
        if spans_lines or isinstance(child, ast.stmt):
            yield child
        if spans_lines:
            yield from statements_and_long_expressions(child)


def code_lines(path: Path) -> set[int]:
    """The numbers of the file's lines that are not blank, a comment, or part of a docstring."""
    numbered = enumerate(map(str.strip, path.read_text(encoding="utf-8").split("\n")), start=1)
    lines, docstrings = {number for number, line in numbered if line and not line.startswith("#")}, set()
    for node in statements_and_long_expressions(tree(path)):
        if isinstance(node, ast.JoinedStr | ast.Constant) and node.end_lineno > node.lineno:  # a blank line is text
            lines |= set(range(node.lineno, node.end_lineno + 1))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings |= set(range(node.lineno, node.end_lineno + 1))
    return lines - docstrings


def functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """The functions in `node`, each with its name behind those of the classes and functions around it."""
    for child in ast.iter_child_nodes(node):
        name = prefix
        if isinstance(child, ast.ClassDef | ast.FunctionDef):
            name = f"{prefix}{child.name}."
        if isinstance(child, ast.FunctionDef):
            yield name[:-1], child
        if not isinstance(child, ast.expr):
            yield from functions(child, name)


def test_functions_fit_on_a_screen_and_files_are_read_in_one_sitting():
    longer_functions, longer_files = {}, {}
    for path in sources():
        name, lines = path.relative_to(ROOT).as_posix(), code_lines(path)
        if len(lines) > LONGEST_FILE:
            longer_files[name] = len(lines)
        for function, node in functions(tree(path)):
            length = len(lines & set(range(node.body[0].lineno, node.end_lineno + 1)))
            if length > LONGEST_FUNCTION:
                longer_functions[f"{name}: {function}"] = length
    assert longer_functions == LONGER_FUNCTIONS
    assert longer_files == LONGER_FILES


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """What is in `node` except expressions, in which nothing is imported: a fraction of what there is."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield child
            yield from statements(child)


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@cache
def imported_modules(path: Path) -> frozenset[str]:
    """The modules that the file imports, within functions too, by their whole names."""
    modules = set()
    for node in statements(tree(path)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = module_name(path).split(".")[: -node.level] if node.level else []
            base = ".".join([*package, *([node.module] if node.module else [])])
            for alias in node.names:
                name = f"{base}.{alias.name}"
                modules.add(name if is_module(name) else base)
    return frozenset(modules)


@cache
def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def floor(module: str) -> int | None:
    """The place in FLOORS; None: a package that is not of this project."""
    folder = module.removeprefix(f"{PACKAGE}.").partition(".")[0]
    if (ROOT / f"{folder}.py").is_file():
        return FLOORS.index("scripts")
    return FLOORS.index(folder) if folder in FLOORS else None


def family(module: str) -> str | None:
    """The folder of modeling/ that the module is in."""
    parts = module.split(".")
    return parts[1] if parts[0] == "modeling" and ROOT.joinpath(*parts[:2]).is_dir() and len(parts) > 1 else None


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_each_example_fits_on_a_teachers_screen(example):
    assert len(example.read_text(encoding="utf-8").splitlines()) <= 250


def test_no_folder_imports_from_one_above_it():
    upward = {
        (module_name(path), imported)
        for path in sources()
        for imported in imported_modules(path)
        if floor(imported) is not None and floor(imported) < floor(module_name(path))
    }
    assert upward == set()


def test_the_models_import_nothing_of_what_the_scripts_share():
    files = [*(ROOT / "modeling").rglob("*.py")]
    assert files
    for path in files:
        assert [name for name in imported_modules(path) if name.partition(".")[0] == PACKAGE] == [], path


def test_each_module_of_training_imports_only_from_those_below_it():
    training = f"{PACKAGE}.training."
    modules = [path for path in (ROOT / PACKAGE / "training").glob("*.py") if path.stem != "__init__"]
    assert {path.stem for path in modules} == {*ROOMS}
    for path in modules:
        rooms = {name.removeprefix(training) for name in imported_modules(path) if name.startswith(training)}
        above = [room for room in rooms if ROOMS.index(room) >= ROOMS.index(path.stem)]
        assert above == [], f"{path.name} imports from {', '.join(above)}"


def test_no_family_of_models_imports_another():
    for path in sources():
        ours = family(module_name(path))
        theirs = {family(imported) for imported in imported_modules(path)} - {None, "shared", ours}
        assert ours is None or not theirs, f"{module_name(path)} imports from {theirs}"


def test_the_package_indexs_page_has_no_link_that_only_the_repository_follows():
    page = run_setup(ROOT / "setup.py")["long_description"]
    assert re.findall(r"\]\((?!https?:)", page) == [] and "](https://" in page
    assert "| BERT | [Devlin et al. 2018](https://" in page and "The documentation is a map by question," in page


@pytest.mark.parametrize("address", ["", "https://github.com/zoo/zoo"], ids=["no address", "address"])
def test_the_package_indexs_page_shows_pictures_where_the_repository_has_an_address(address, tmp_path):
    for name in ("setup.py", "CITATION.cff"):
        (tmp_path / name).write_text(read(name), encoding="utf-8")
    (tmp_path / "README.md").write_text("Zoo\n\n![a plot](docs/a.png)\n\n[Guide](docs/a.md)\n", encoding="utf-8")
    if address:
        with (tmp_path / "CITATION.cff").open("a", encoding="utf-8") as citation:
            citation.write(f'repository-code: "{address}"\n')
    arguments = run_setup(tmp_path / "setup.py")
    picture = f"![a plot]({address}/raw/main/docs/a.png)\n\n" if address else ""
    assert arguments["long_description"] == f"Zoo\n\n{picture}Guide\n"
    assert arguments["url"] == (address or None)


def test_continuous_integration_runs_targets_that_exist_and_the_suite_last():
    setup, *goals = read(".ci/run").rpartition("\n\n")[2].splitlines()
    # What cannot be installed fails only the goals that need it.
    assert setup.startswith("test -d .venv || make install-all || ")
    (called,) = ([word for word in line.split()[1:] if not word.startswith("-")] for line in goals)
    assert called == ["lint", "docs", "test-release", "test-clients", "test-weights", "test-all"]
    assert {*called, "install-all", "demo", "test", "test-slow"} <= make_targets()


def test_commands_without_make_are_those_of_the_makefile():
    exports = dict(re.findall(r"^demo .*: export (\w+) = (\w+)$", read("Makefile"), flags=re.MULTILINE))
    runs = re.findall(r"^\t\$\(BIN\)/(python -m (?:pytest|demo).*)$", read("Makefile"), flags=re.MULTILINE)
    runs = [run.replace("$(WORKERS)", "2") for run in runs]
    (windows,) = blocks("README.md", "powershell")
    assert rf".venv\Scripts\{runs[0]}" in windows.splitlines()
    assert r".venv\Scripts\python -m pip install -c constraints.txt -e ." in windows.splitlines()
    for run in runs[1:]:
        words = [f"{name}={value}" for name, value in exports.items()] + shlex.split(run)
        assert words in commands("CONTRIBUTING.md")


def test_only_the_benchmarks_need_unix():
    of_unix = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
    files = [path for name in ("demo", *FOLDERS) for path in (ROOT / name).rglob("*.py")]
    for path in [*files, *(ROOT / f"{name}.py" for name in SCRIPTS)]:
        assert not imported_packages(path) & of_unix, path


def test_the_suite_needs_nothing_of_the_clients(package):
    clients, suite = (
        {canonicalize_name(needed.name) for needed in requirements(package, extra)} for extra in ("clients", "test")
    )
    users = [
        path.relative_to(ROOT / "tests")
        for path in (ROOT / "tests").rglob("*.py")
        if (clients - suite) & {canonicalize_name(name) for name in imported_packages(path)}
    ]
    assert users and {path.parts[0] for path in users} == {"clients"}
