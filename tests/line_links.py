"""Links of the guides to lines of code: [`Class.method`](../modeling/file.py#L12).

    python -m tests.line_links

writes the numbers anew, after the code above such a line has changed.
"""

import ast
import re
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


if __name__ == "__main__":
    for guide in [ROOT / "README.md", *ROOT.glob("docs/*.md")]:
        guide.write_text(renumber(guide), encoding="utf-8")
