"""Tables of the guides that are made of committed records: `<!-- records/blimp.json -->`, the table, `<!-- end -->`.

    python -m tests.result_tables

writes them anew, after a record.json of `zoo-reproduce TABLE` has become docs/records/TABLE.json.
"""

import json
import re
from pathlib import Path

from elmo_gpt_bert.reproduction.report import markdown, scores
from elmo_gpt_bert.reproduction.tables import TABLES
from tests.line_links import ROOT


BLOCK = re.compile(r"(<!-- (records/\w+\.json) -->\n).*?(\n<!-- end -->)", re.DOTALL)


def renew(guide: Path) -> str:
    """The guide's text, with the tables that its records make."""
    return BLOCK.sub(lambda block: block[1] + table(guide.parent / block[2]) + block[3], guide.read_text("utf-8"))


def table(path: Path) -> str:
    record = json.loads(path.read_text(encoding="utf-8"))
    shape = TABLES[record["table"]][record["budget"]]
    return markdown(shape, record, scores(shape, record)).rstrip("\n")


if __name__ == "__main__":
    for guide in ROOT.glob("docs/*.md"):
        guide.write_text(renew(guide), encoding="utf-8")
