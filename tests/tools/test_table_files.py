"""tables.yaml and papers.yaml: what they say is read as it is written, and what they cannot mean is an error."""

import re
from pathlib import Path

import pytest
import yaml

from elmo_gpt_bert.reproduction import tables
from elmo_gpt_bert.reproduction.tables import TABLES, Cell, Place, Published, read_rows, read_table, read_tables
from elmo_gpt_bert.training import reporting
from elmo_gpt_bert.training.errors import InputError
from tests.conftest import ROOT


PAPERS = Path(reporting.__file__).with_name("papers.yaml")


def read(text: str) -> dict[str, tables.Row]:
    return read_rows(yaml.safe_load(text), {})


@pytest.mark.parametrize("path", [tables.FILE, PAPERS], ids=lambda path: path.name)
def test_no_key_occurs_twice_and_no_name_is_a_number_or_a_switch(path):
    """YAML would take the second of two keys, and false for no."""
    nodes = [yaml.compose(path.read_text(encoding="utf-8"), yaml.SafeLoader)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, yaml.MappingNode):
            keys = [key.value for key, _ in node.value]
            assert len({*keys}) == len(keys), keys
            assert {key.tag for key, _ in node.value} <= {"tag:yaml.org,2002:str"}, keys
            nodes += [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            nodes += node.value


def test_every_figure_of_the_papers_is_a_number():
    figures = [value for systems in reporting.PAPERS.values() for row in systems.values() for value in row.values()]
    assert {type(value) for value in figures} == {float, type(None)}


def test_a_row_is_there_for_each_record_and_rows_of_one_name_are_one_run():
    rows = read("""
    - each: {task: [cola, sst2], size: [1, 2]}
      name: $task/${size}_layers
      script: run_glue
      flags: [{data_dir: {data: glue/$task}}, {reinit_layers: $size}]
      line: [$task]
      scores: {dev: eval_accuracy}
    - {run: sst2/2_layers, line: [again], scores: {dev: eval_f1}}
    """)
    assert list(rows) == ["cola/1_layers", "cola/2_layers", "sst2/1_layers", "sst2/2_layers"]
    last = rows["sst2/2_layers"]
    assert last.flags == {"data_dir": Place("data", "glue/sst2"), "reinit_layers": 2}
    assert last.cells == (Cell(("sst2",), "dev", "eval_accuracy"), Cell(("again",), "dev", "eval_f1"))


@pytest.mark.parametrize(
    "text, problem",
    [
        ("[{name: a, script: s}, {name: a, script: t}]", "two rows have the name a, and do not run the same"),
        ("[{name: $task, script: s}]", r"\$task: 'task'; `each` has no names"),
        ("[{each: {size: [1]}, name: a_$s, script: s}]", r"a_\$s: 's'; `each` has size"),
        ("[{name: a, script: s, line: [x]}]", "a row that has a line needs scores, and the other way round"),
        ("[{name: a, script: s, line: [no], scores: {dev: m}}]", "False is no text; put it into quotes"),
    ],
)
def test_what_a_row_cannot_mean_is_an_error(text, problem):
    with pytest.raises(InputError, match=f"tables.yaml.*{problem}"):
        read(text)


@pytest.mark.parametrize(
    "text, problem",
    [
        ("- {run: b}", "after : a key is missing or unknown: 'b'"),
        ("- {name: a, script: s, recipes: r}", "unexpected keyword argument 'recipes'"),
        ("- {name: A, script: s}", "t: A is no name of a folder"),
        ("- {name: a, script: s, flags: {vectors: {row: b}}}", "a needs {'b'}: rows before it, without seeds"),
        ("- {name: a, script: s, line: [x], scores: {test: m}}", r"a: the table has no cell \('x',\), test"),
    ],
)
def test_a_table_that_cannot_be_is_an_error(text, problem, tmp_path):
    table = {"title": "", "heads": ["h"], "columns": ["dev"], "rows": yaml.safe_load(text)}
    content = {"models": {}, "runs": [], "tables": {"t": {"small": table}}}
    (tmp_path / "tables.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    with pytest.raises(InputError, match=problem):
        read_tables(tmp_path / "tables.yaml")


def test_the_table_of_the_guide_can_be_read():
    guide = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8").partition("## Add a table")[2]
    entry = yaml.safe_load(re.search("```yaml\n(.*?)```", guide, flags=re.DOTALL)[1])["tables"]["rates"]["paper"]
    runs = {row.name: row for row in TABLES["glue"]["paper"].rows}
    table = read_table("rates", "paper", entry, runs)
    first, second = table.rows
    assert first.flags == runs["gpt/cola"].flags and second.flags == runs["gpt/cola"].flags | {"learning_rate": 0.0001}
    assert table.published == (Published(("6.25e-5",), "GPT's paper, table 5: test", 45.4),)
