"""Fills a new environment for the tests of the wheel with what is installed here, without a copy.

    python -m tests.linked_environment FOLDER

The environment in FOLDER gets links to the packages that the project and pytest need, those that these need in turn,
and no others: a package that the project imports and does not declare is missing there, as it may be for a user. pip
takes a minute of CPU for the same packages.
"""

import argparse
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement


PROJECT = "elmo-gpt-bert"


def needed(names: Iterable[str]) -> Iterator[Distribution]:
    """The distributions of these names, with extras in brackets, and all that they need, each at least once.

    Raises PackageNotFoundError for one that is not installed.
    """
    waiting, seen = list(names), set()
    while waiting:
        requirement = Requirement(waiting.pop())
        wanted = requirement.name, *sorted(requirement.extras)
        if wanted in seen:
            continue
        seen.add(wanted)
        package = distribution(requirement.name)
        yield package
        for line in package.requires or []:
            marker = Requirement(line).marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *requirement.extras)):
                waiting.append(line)


def link(package: Distribution, folder: Path) -> None:
    """Links each file and folder of the package beside its metadata into a folder of packages."""
    source = Path(str(package.locate_file("")))
    for name in {file.parts[0] for file in package.files or []} - {"..", "__pycache__"}:
        if not (folder / name).exists():  # several packages may share a folder, as google's do
            (folder / name).symlink_to(source / name)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m tests.linked_environment", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    (packages,) = parser.parse_args(argv).folder.resolve().glob("lib/python*/site-packages")
    for package in needed([PROJECT, "pytest"]):
        if package.name != PROJECT:
            link(package, packages)


if __name__ == "__main__":
    main()
