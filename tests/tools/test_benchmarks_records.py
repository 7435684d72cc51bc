"""What the benchmarks have written is shown again: a file of --json, and each of benchmarks/records."""

import pytest

from benchmarks import speed
from benchmarks.__main__ import main
from tests.conftest import ROOT


RECORDS = sorted(ROOT.glob("benchmarks/records/*.json"))


@pytest.mark.usefixtures("_little_work")
def test_a_file_of_json_is_shown_as_the_table_that_was_printed(tmp_path, capsys):
    file = tmp_path / "results.json"
    words = ["small-pairs", "serving-1", "--size", "tiny", "--settings", "fp32", "--pairs", "1"]
    words += ["--threads", "1", "2"]
    main([*words, "--json", str(file)])
    printed = capsys.readouterr().out.split()
    main(["--show", str(file)])
    assert capsys.readouterr().out.split() == printed


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_each_record_is_shown_with_its_machine_and_a_table(path, capsys):
    main(["--show", str(path)])
    shown = capsys.readouterr().out
    assert "processor " in shown and "| --- |" in shown


def test_a_file_that_holds_no_table_is_one_clear_error(tmp_path, capsys):
    (tmp_path / "a.json").write_text("{}", encoding="utf-8")
    for name in ("a.json", "b.json"):
        with pytest.raises(SystemExit):
            main(["--show", str(tmp_path / name)])
        assert f"{name} cannot be read" in capsys.readouterr().err


def test_the_picture_of_speed_has_a_bar_for_each_row_with_the_ratio_of_its_record(tmp_path):
    speed.main([str(tmp_path / "speed.png")])
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")
    processor, card = speed.draw().axes
    labels = [text.get_text() for text in processor.get_yticklabels()]
    assert "BERT, fine-tuning step: 3.1" in labels and len(labels) == len(processor.patches) == 8
    assert [bar.get_width() for bar in processor.patches][:3] == [2.12, 3.14, 2.1]
    assert [bar.get_width() for bar in card.patches][:2] == [1.08, 0.92]  # the newest, and one that is slower


def test_the_readme_names_the_lowest_and_the_highest_ratio_of_the_picture():
    for axes, what, in_chinese in zip(
        speed.draw().axes, ("our CPU time", "our time"), ("CPU 时间是这里的", "时间是这里的"), strict=True
    ):
        ratios = [bar.get_width() for bar in axes.patches]
        lowest, highest = f"{min(ratios):.1f}", f"{max(ratios):.1f}"
        english, chinese = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh.md"))
        assert f"takes {lowest} to {highest} times {what}" in " ".join(english.split())
        assert f"{in_chinese} {lowest} 到 {highest} 倍" in chinese
