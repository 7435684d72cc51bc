"""tables.yaml and papers.yaml: what they say can be meant, and is read as it is written."""

import re
from pathlib import Path

import pytest
import yaml

from elmo_gpt_bert.reproduction import tables
from elmo_gpt_bert.reproduction.tables import TABLES, Place, read_rows, read_table
from elmo_gpt_bert.training import reporting
from elmo_gpt_bert.training.errors import InputError
from tests.conftest import ROOT


PAPERS = Path(reporting.__file__).with_name("papers.yaml")
EACH_TABLE = pytest.mark.parametrize(
    "table", [table for budgets in TABLES.values() for table in budgets.values()], ids=lambda table: table.folder
)


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
    assert last.scores == {(("sst2",), "dev"): "eval_accuracy", (("again",), "dev"): "eval_f1"}


def test_two_rows_of_one_name_that_do_not_run_the_same_are_an_error():
    with pytest.raises(InputError, match="tables.yaml: two rows have the name a, and do not run the same"):
        read("[{name: a, script: s}, {name: a, script: t}]")


@EACH_TABLE
def test_the_name_of_a_row_is_a_folder_and_what_it_begins_with_is_above_it_and_has_no_seeds(table):
    above = set()
    for row in table.rows:
        assert re.fullmatch(r"[a-z0-9_]+(/[a-z0-9_]+)*", row.name)
        assert row.needs <= above, row.name
        above |= set() if row.seeded else {row.name}


@EACH_TABLE
def test_each_score_stands_in_a_column_of_the_table_and_each_comparison_is_of_two(table):
    for (line, column), metric in (item for row in table.rows for item in row.scores.items()):
        assert len(line) == len(table.heads) and column in table.columns, line
        assert {type(text) for text in (*line, column, metric)} == {str}, f"{line}, {column} needs quotes"
    assert table.comparisons.keys() <= {*table.columns}
    assert {*table.comparisons.values()} <= {*table.published_columns}


def test_a_row_with_a_line_has_scores():
    content = yaml.load(tables.FILE.read_text(encoding="utf-8"), tables.LOADER)
    entries = [
        entry for budgets in content["tables"].values() for table in budgets.values() for entry in table["rows"]
    ]
    rows = list(tables.expand([*content["runs"], *entries]))
    assert rows and all(bool(row.get("line")) == bool(row.get("scores")) for row in rows)


def test_the_table_of_the_guide_can_be_read():
    guide = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8").partition("## Add a table")[2]
    entry = yaml.safe_load(re.search("```yaml\n(.*?)```", guide, flags=re.DOTALL)[1])["tables"]["rates"]["paper"]
    runs = {row.name: row for row in TABLES["glue"]["paper"].rows}
    table = read_table("rates", "paper", entry, runs)
    first, second = table.rows
    assert first.flags == runs["gpt/cola"].flags and second.flags == runs["gpt/cola"].flags | {"learning_rate": 0.0001}
    assert table.published == {(("6.25e-5",), "GPT's paper, table 5: test"): 45.4}
