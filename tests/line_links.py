"""Links of the guides to lines of code: [`Class.method`](../modeling/file.py#L12).

    python -m tests.line_links

writes the numbers anew, after the code above such a line has changed. With --check, it only says which guides
have an old one; make lint runs that.
"""

import argparse
import ast
import re
import sys
from pathlib import Path


ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(\[`([\w.]+)`\]\(([^)#\s]+\.py)#L)\d+\)")


def renumber(guide: Path) -> str:
    """The guide's text, in which each link has the line of the class or function that it names.

    Raises KeyError for a name that its file does not define.
    """

    def link(match: re.Match) -> str:
        start, name, path = match.groups()
        return f"{start}{line_of(name, guide.parent / path)})"

    return LINK.sub(link, guide.read_text(encoding="utf-8"))


def line_of(name: str, path: Path) -> int:
    node = ast.parse(path.read_text(encoding="utf-8"))
    for part in name.split("."):
        node = {each.name: each for each in node.body if isinstance(each, ast.ClassDef | ast.FunctionDef)}[part]
    return node.lineno


def main(argv: list[str]) -> str | None:
    """Renumbers the guides. With --check, returns what is to be done instead, or None."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a number is old")
    args = parser.parse_args(argv)
    renumbered = {guide: renumber(guide) for guide in [ROOT / "README.md", *ROOT.glob("docs/*.md")]}
    old = [guide for guide, text in renumbered.items() if text != guide.read_text(encoding="utf-8")]
    if args.check:
        names = ", ".join(str(guide.relative_to(ROOT)) for guide in old)
        return f"a link to a line of code has an old number, run python -m tests.line_links: {names}" if old else None
    for guide in old:
        guide.write_text(renumbered[guide], encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
