"""How much of the product the suite guards: covered branches, and changes of the code that a test notices.

python -m tests.mutations cover FOLDER
python -m tests.mutations try FOLDER [--number 200] [--seed 0] [--seconds 60] [--json FILE]

The first command runs the whole suite under coverage.py, also in the processes that tests start, and keeps in FOLDER
which test ran which line. The second one takes a statement out or turns a comparison round, at places drawn at random
over the product, and runs the tests that ran the line, the quickest first, until one fails or until they have taken
--seconds. It writes over the files of this checkout and puts them back, so run it in a checkout of its own.
"""

import argparse
import ast
import importlib
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest


ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ["modeling", "elmo_gpt_bert"]
SETTINGS = """
[run]
branch = true
parallel = true
sigterm = true
data_file = {folder}/coverage
context = ${{PYTEST_CURRENT_TEST-}}
source = {root}
omit = {root}/.venv/*, {root}/tests/*, {root}/benchmarks/*, {root}/demo/*, {root}/docs/*, {root}/setup.py
disable_warnings = no-data-collected, module-not-measured
"""
# A change that makes the tests hang is noticed, too.
LONGEST_SECONDS = 300
OTHERS = ["accelerate", "datasets", "evaluate", "sklearn.metrics", "torch", "transformers.models.bert"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    """Names the test to coverage.py and keeps its CPU time. This file is a plugin of the suite in `cover`."""
    import coverage

    coverage.Coverage.current().switch_context(item.nodeid)
    before = cpu_seconds()
    result = yield
    with Path(os.environ["COVERAGE_PROCESS_START"]).with_name(f"seconds-{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps([item.nodeid, round(cpu_seconds() - before, 3)]) + "\n")
    return result


def cpu_seconds() -> float:
    """Of this process and of the child processes that have ended."""
    return sum(os.times()[:4])


@dataclass(frozen=True)
class Mutation:
    """A change of the code between two places of a file; lines count from 1, columns are bytes from 0."""

    file: str
    at_import: bool  # whether the statement runs when the module is imported
    statement: int  # the line where the changed statement begins
    line: int
    column: int
    end_line: int
    end_column: int
    text: str  # what stands there instead
    noticed: str | None = None  # how

    def apply(self, source: bytes) -> bytes:
        lines = source.splitlines(keepends=True)
        before = b"".join(lines[: self.line - 1]) + lines[self.line - 1][: self.column]
        after = lines[self.end_line - 1][self.end_column :] + b"".join(lines[self.end_line :])
        return before + self.text.encode() + after


TURNED = {ast.Eq: "!=", ast.NotEq: "==", ast.Lt: ">=", ast.GtE: "<", ast.Gt: "<=", ast.LtE: ">"}
TURNED |= {ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is"}
STATEMENTS = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return, ast.Raise, ast.Delete, ast.Continue)


def mutations_of(path: Path) -> Iterator[Mutation]:
    """Every statement that can be taken out, and every comparison of two values that can be turned round."""
    source = path.read_bytes()
    lines = source.splitlines()
    name = path.relative_to(ROOT).as_posix()
    for node, statement, at_import in nodes(ast.parse(source)):
        place = name, at_import, statement
        if isinstance(node, STATEMENTS) and not is_docstring(node):
            yield Mutation(*place, node.lineno, node.col_offset, node.end_lineno, node.end_col_offset, "pass")
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = node.left, node.comparators[0]
            if left.end_lineno == right.lineno:  # with the operator alone between them, in its spaces or brackets
                start, end = left.end_col_offset, right.col_offset
                between = lines[right.lineno - 1][start:end].decode()
                text = between.replace(" ".join(between.strip(" ()").split()), TURNED[type(node.ops[0])])
                yield Mutation(*place, right.lineno, start, right.lineno, end, text)


def nodes(node: ast.AST, statement: int = 1, at_import: bool = True) -> Iterator[tuple[ast.AST, int, bool]]:
    """All nodes, each with the line where the statement around it begins, and whether that is in no function."""
    for child in ast.iter_child_nodes(node):
        line = child.lineno if isinstance(child, ast.stmt) else statement
        yield child, line, at_import
        yield from nodes(child, line, at_import and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))


def is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def product() -> list[Path]:
    scripts = [path for path in ROOT.glob("*.py") if path.stem != "setup"]
    return sorted([*scripts, *(path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py"))])


def cover(folder: Path) -> None:
    """Runs the suite under coverage.py and prints the report."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "settings.ini"  # `combine` reads what begins with the name of the data
    settings.write_text(SETTINGS.format(folder=folder, root=ROOT))
    # coverage.py starts by itself in each process of Python that finds this variable.
    environment = os.environ | {"COVERAGE_PROCESS_START": str(settings)}
    suite = [sys.executable, "-m", "pytest", "-p", "tests.mutations", "-n", "3", "--dist", "loadfile"]
    subprocess.run(suite, cwd=ROOT, env=environment)
    for words in (["combine", "--quiet"], ["report", "--precision=2", "--sort=cover"]):
        subprocess.run([sys.executable, "-m", "coverage", words[0], f"--rcfile={settings}", *words[1:]], cwd=ROOT)


def seconds_of_tests(folder: Path) -> dict[str, float]:
    """The CPU time of each test."""
    lines = [line for path in folder.glob("seconds-*.jsonl") for line in path.read_text().splitlines()]
    return dict(map(json.loads, lines))


def tests_of_lines(folder: Path, files: set[str]) -> dict[tuple[str, int], set[str]]:
    """The tests that ran a line of these files."""
    from coverage import CoverageData

    data = CoverageData(str(folder / "coverage"))
    data.read()
    tests = defaultdict(set)
    for file in files:
        for line, contexts in data.contexts_by_lineno(str(ROOT / file)).items():
            tests[file, line] |= {context.removesuffix(" (call)") for context in contexts if "::" in context}
    return tests


def try_out(number: int, mutation: Mutation, tests: list[str]) -> str | None:
    """How the tests notice the mutation of that number, such as the first that fails; None: they do not."""
    if not tests:
        return None
    path = ROOT / mutation.file
    source, times = path.read_bytes(), path.stat()
    with tempfile.TemporaryFile("w+") as output:
        # What does not change is imported once, in this process. The project itself is not.
        process = multiprocessing.get_context("fork").Process(target=run_tests, args=(tests, output.fileno()))
        try:
            path.write_bytes(mutation.apply(source))
            # Python takes a compiled file for that of a source with the same size and second.
            os.utime(path, (times.st_atime, times.st_mtime - number))
            process.start()
            process.join(LONGEST_SECONDS)
        finally:
            path.write_bytes(source)
            os.utime(path, (times.st_atime, times.st_mtime))
        if process.is_alive():
            os.killpg(process.pid, signal.SIGKILL)
            return "hangs"
        output.seek(0)
        failed = [line for line in output.read().splitlines() if line.startswith(("FAILED", "ERROR"))]
    return None if process.exitcode == 0 else (failed or [f"exit status {process.exitcode}"])[0]


def run_tests(tests: list[str], output: int) -> None:
    os.setpgid(0, 0)  # so that all that the tests start can be killed
    os.dup2(output, 1)
    os.dup2(output, 2)
    os._exit(pytest.main(["-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", *tests]))


def try_all(folder: Path, number: int, seed: int, seconds: float, json_file: Path | None) -> None:
    """Draws the mutations, tries each, and prints how many were noticed."""
    drawn = random.Random(seed).sample([each for path in product() for each in mutations_of(path)], number)
    times = seconds_of_tests(folder)
    tests = tests_of_lines(folder, {mutation.file for mutation in drawn})
    results = []
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    for name in OTHERS:
        importlib.import_module(name)
    for number, mutation in enumerate(drawn, start=1):
        lines = range(mutation.statement, mutation.end_line + 1)
        covering = set().union(*(tests[mutation.file, line] for line in lines))
        if mutation.at_import:  # it runs in the first test that imports the module, for all others
            covering = set().union(*(names for (file, _), names in tests.items() if file == mutation.file))
        quickest = sorted(covering & times.keys(), key=times.get)
        spent, chosen = 0.0, []
        for test in quickest:
            spent += times[test]
            if spent <= seconds or not chosen:
                chosen.append(test)
        noticed = try_out(number, mutation, chosen)
        results.append(asdict(mutation) | {"tests": len(quickest), "tried": len(chosen), "noticed": noticed})
        print(json.dumps(results[-1]), flush=True)
        if json_file:
            json_file.write_text(json.dumps(results, indent=1))
    print(f"{sum(result['noticed'] is not None for result in results)} of {len(results)} noticed")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m tests.mutations", description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=["cover", "try"])
    parser.add_argument("folder", type=lambda text: Path(text).resolve())
    parser.add_argument("--number", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0, help="CPU time that the tests of a mutation may take")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    if args.action == "cover":
        cover(args.folder)
    else:
        try_all(args.folder, args.number, args.seed, args.seconds, args.json)


if __name__ == "__main__":
    main()
