"""Finds the recipes and configurations that come with this project, in a checkout and in an installation."""

from pathlib import Path


_PACKAGE = Path(__file__).resolve().parents[1]
CONFIGS = next(folder for folder in (_PACKAGE / "configs", _PACKAGE.parent / "configs") if folder.is_dir())


def find_config(path: str) -> str:
    """The file of that path or, if there is none and the path begins with configs/, the project's file of that name.

    So the commands of the guides, and recipes that name a configuration, work in every directory.
    """
    first, *rest = Path(path).parts or [""]
    shipped = CONFIGS.joinpath(*rest)
    return str(shipped) if first == "configs" and not Path(path).exists() and shipped.is_file() else path
