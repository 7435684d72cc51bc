"""Settings of Sphinx, which makes a site of the guides and the docstrings: `make docs`."""

import re
import sys
from pathlib import Path


sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

project = "ELMo, GPT and BERT"
copyright = "2026, the authors of this model zoo"  # noqa: A001 - Sphinx's name
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
include_patterns = ["*.md", "docs/**", "benchmarks/README.md", "checkpoints/README.md"]
exclude_patterns = ["docs/site/html"]
root_doc = "docs/README"  # contents.txt says what is in the side bar
html_extra_path = ["index.html"]  # leads to it
html_theme = "furo"
html_title = project
myst_heading_anchors = 3
# Links to folders of the repository, which are no pages. tests/project/test_guides.py checks where links lead.
suppress_warnings = ["myst.xref_missing"]
default_role = "code"  # docstrings have Markdown's quotes around code
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
maximum_signature_line_length = 100


def setup(app):
    app.connect("source-read", add_contents)
    app.connect("autodoc-process-docstring", indent_examples)


def add_contents(app, docname, source):
    """Adds the side bar to the home page, which is read on GitHub, too, where Sphinx's directives would be text."""
    if docname == root_doc:
        source[0] += "\n" + Path(__file__).with_name("contents.txt").read_text(encoding="utf-8")


def indent_examples(app, what, name, obj, options, lines):
    """Blocks of code between Markdown's fences, as transformers writes them, become blocks of reStructuredText.

    A method that wraps one of transformers' has its docstring, which stands in their documentation.
    """
    if getattr(obj, "__module__", "").startswith("transformers."):
        lines.clear()
    text = re.sub(r"^```python\n(.*?)^```$", _indent, "\n".join(lines), flags=re.DOTALL | re.MULTILINE)
    lines[:] = text.split("\n")


def _indent(match):
    return "::\n\n" + "".join(f"    {line}\n" for line in match.group(1).splitlines())
