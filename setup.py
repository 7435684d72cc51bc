"""What pyproject.toml cannot say of the package: its page, and the files that a wheel has from the root."""

import re
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


ROOT = Path(__file__).resolve().parent

# The repository's address stands in CITATION.cff. The package index does not follow links into the repository; their
# text stays. It shows a picture by its whole address, which begins with the repository's. While CITATION.cff does not
# name that, pictures are left out.
README = (ROOT / "README.md").read_text(encoding="utf-8")
CITATION = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
REPOSITORY = re.search('^repository-code: "(.*)"$', CITATION, re.MULTILINE)
PICTURE = rf"![\1]({REPOSITORY[1]}/raw/main/\2)\n\n" if REPOSITORY else ""
DESCRIPTION = re.sub(r"!\[([^\]]+)\]\((?!https?:)([^)]+)\)\n\n", PICTURE, README)
DESCRIPTION = re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]+\)", r"\1", DESCRIPTION)


class Build(build_py):
    """Also puts the scripts and the recipes, which are at the root of the repository, into the package."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            scripts = Path(self.build_lib, "elmo_gpt_bert", "scripts")
            for path in sorted(ROOT.glob("run_*.py")):
                self.copy_file(path.name, str(scripts))
            self.copy_file("examples/word2vec.py", str(scripts))  # a step of a table
            self.copy_tree("configs", str(scripts.with_name("configs")))


setup(
    long_description=DESCRIPTION,
    long_description_content_type="text/markdown",
    url=REPOSITORY[1] if REPOSITORY else None,
    cmdclass={"build_py": Build},
)
