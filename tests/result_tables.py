"""Tables that are made of the committed records: beside each record its CSV, and in a guide a table by task.

    python -m tests.result_tables

writes them anew, after `zoo-reproduce TABLE --record docs/records/TABLE.json` has changed a record. In a guide, such
a table stands between `<!-- records/TABLE.json by task -->` and `<!-- end -->`. It has a line for each model and a
column for each task.
"""

import json
import re
from pathlib import Path

from elmo_gpt_bert.reproduction.report import Values, cell_text, comma_separated, scores
from elmo_gpt_bert.reproduction.tables import TABLES, Table
from tests.line_links import ROOT


BLOCK = re.compile(r"(<!-- (records/\w+\.json) by task -->\n).*?(\n<!-- end -->)", re.DOTALL)
RECORDS = sorted(ROOT.glob("docs/records/*.json"))


def read(path: Path) -> tuple[Table, Values]:
    record = json.loads(path.read_text(encoding="utf-8"))
    table = TABLES[record["table"]][record["budget"]]
    return table, scores(table, record)


def renew(guide: Path) -> str:
    """The guide's text, with the tables that its records make."""
    return BLOCK.sub(lambda block: block[1] + by_task(guide.parent / block[2]) + block[3], guide.read_text("utf-8"))


def by_task(path: Path) -> str:
    """The mean and the deviation of each column of the record's table, with an arrow between them."""
    table, values = read(path)
    tasks, models = (list(dict.fromkeys(names)) for names in zip(*table.lines, strict=True))
    rows = [["model", *tasks], ["---"] * (1 + len(tasks))]
    for model in models:
        cells = [[cell_text(values[(task, model), column]) for column in table.columns] for task in tasks]
        rows.append([model, *(" → ".join(text.rpartition(" (")[0] for text in texts) for texts in cells)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def csv_table(path: Path) -> str:
    """As report.write_report writes it."""
    return comma_separated(*read(path))


if __name__ == "__main__":
    for guide in ROOT.glob("docs/*.md"):
        guide.write_text(renew(guide), encoding="utf-8")
    for path in RECORDS:
        path.with_suffix(".csv").write_text(csv_table(path), encoding="utf-8")
