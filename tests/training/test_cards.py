"""A model card as a stranger meets it: its code runs, it names where the model comes from, and no name breaks it."""

import contextlib
import io
import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from huggingface_hub import ModelCard
from torch.distributed.fsdp import FSDPModule
from transformers import BertConfig, BertModel

import modeling
import run_glue
import run_ner
import run_squad
import run_swag
from elmo_gpt_bert.training import reporting
from elmo_gpt_bert.training.arguments import public_arguments
from elmo_gpt_bert.training.flags import parse_arguments
from elmo_gpt_bert.training.task import Description
from tests.support import glue_sample
from tests.support.gpt_sample import write_gpt_model
from tests.support.tiny_run import prepare
from tests.tasks.test_run_swag import write_elmo
from tests.training.test_samples import data_of


SHORT = ["--do_train", "--do_eval", "--max_steps", "1", "--save_strategy", "no", "--max_seq_length", "32"]


@dataclass
class Way:
    """A block of code of a card."""

    title: str
    code: str

    def run(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
        """Runs it from `folder`; gives where its model's class is from, and what it prints."""
        monkeypatch.chdir(folder)
        modeling.unregister()
        names, printed = {}, io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(self.code, names)
        return type(names["model"]).__module__, printed.getvalue()


def ways_of(card: Path) -> list[Way]:
    text = card.read_text(encoding="utf-8").partition("## How to use")[2].partition("## Recipe")[0]
    blocks = re.findall(r"^([^\n`].*?:)\n\n```python\n(.*?)\n```$", text, re.DOTALL | re.MULTILINE)
    return [Way(*block) for block in blocks]


@pytest.mark.parametrize("script", [run_glue, run_ner, run_squad, run_swag], ids=lambda script: script.__name__)
def test_the_code_of_a_card_runs_in_each_of_the_three_ways(tmp_path, monkeypatch, script: ModuleType):
    model = ["--model_name_or_path", str(glue_sample.write_model(tmp_path))]
    model += ["--tokenizer_name", str(glue_sample.write_vocabulary(tmp_path)), "--output_dir", str(tmp_path / "out")]
    script.main([*model, *data_of(script, tmp_path), *SHORT])
    runs = [way.run(tmp_path, monkeypatch) for way in ways_of(tmp_path / "out" / "README.md")]
    sources = [module for module, _ in runs]
    assert sources[:2] == ["modeling.bert.modeling_bert_tasks", "transformers.models.bert.modeling_bert"]
    assert sources[2].startswith("transformers_modules.") and len(runs) == 3
    assert len({printed for _, printed in runs}) == 1


@pytest.mark.parametrize(("folder", "printed"), [("SST-2", "(negative|positive)"), ("STS-B", r"-?\d+\.\d+")])
def test_the_code_of_a_card_reads_one_text_and_gives_a_number_where_the_task_does(
    tmp_path, monkeypatch, folder, printed
):
    model = ["--model_name_or_path", str(glue_sample.write_model(tmp_path))]
    model += ["--tokenizer_name", str(glue_sample.write_vocabulary(tmp_path)), "--output_dir", str(tmp_path / "out")]
    task = [
        "--task_name",
        folder.replace("-", "").lower(),
        "--data_dir",
        str(glue_sample.write_task(tmp_path, folder)),
    ]
    run_glue.main([*model, *task, *SHORT])
    for way in ways_of(tmp_path / "out" / "README.md"):
        assert re.fullmatch(printed, way.run(tmp_path, monkeypatch)[1].strip())
        assert ("It is bad" in way.code) == (folder == "STS-B")


def test_what_transformers_alone_does_not_have_is_not_offered_for_it(tmp_path, monkeypatch):
    gpt = ["--model_name_or_path", str(write_gpt_model(tmp_path)), "--output_dir", str(tmp_path / "decoder")]
    elmo = ["--model_name_or_path", str(write_elmo(tmp_path)), "--output_dir", str(tmp_path / "esim")]
    data = data_of(run_swag, tmp_path)
    for flags, name in ((gpt, "decoder"), (elmo, "esim")):
        run_swag.main([*flags, *data, *SHORT])
        ways = ways_of(tmp_path / name / "README.md")
        assert ["alone" in way.title for way in ways] == [False, False]
        assert len({way.run(tmp_path, monkeypatch)[1] for way in ways}) == 1


def test_a_card_names_language_licence_and_the_checkpoint_it_began_as(run, tmp_path, monkeypatch):
    _, _, model, _ = prepare(run())
    data = Description("text-classification", "nyu-mll/glue", "GLUE SST-2", language="en")

    def head(name: str) -> dict:
        card = reporting.model_card(model, {}, data, run(model_name_or_path=name), processes=1)
        return ModelCard(card.content).data.to_dict()

    random = head(run().model_name_or_path)
    assert random["license"] == "apache-2.0" and "base_model" not in random
    assert random["language"] == "en" and random["tags"] == ["bert", "text-classification"]
    assert random["library_name"] == "transformers" and random["datasets"] == "nyu-mll/glue"
    for name, licence in (("google-bert/bert-base-cased", "apache-2.0"), ("openai-community/openai-gpt", "mit")):
        assert (head(name)["license"], head(name)["base_model"]) == (licence, name)
    assert "license" not in head("someone/else") and head("someone/else")["base_model"] == "someone/else"
    folder = tmp_path / "folder"
    folder.mkdir()
    assert not {"license", "base_model"} & head(str(folder)).keys()
    (folder / "README.md").write_text("---\nlicense: mit\nbase_model: openai-community/openai-gpt\n---\n")
    assert (head(str(folder))["license"], head(str(folder))["base_model"]) == ("mit", "openai-community/openai-gpt")
    (folder / "README.md").write_text("---\nlicense: [\n---\n")
    assert not {"license", "base_model"} & head(str(folder)).keys()


def test_a_checkpoint_has_the_licence_of_its_run(run, tmp_path):
    (tmp_path / "run" / "checkpoint-3").mkdir(parents=True)
    (tmp_path / "run" / "README.md").write_text("---\nlicense: mit\nbase_model: openai-community/openai-gpt\n---\n")
    base = reporting.origin(run(model_name_or_path=str(tmp_path / "run" / "checkpoint-3")))
    assert (base.license, base.base_model) == ("mit", "openai-community/openai-gpt")


def test_a_card_names_the_class_that_is_saved_where_fsdp_gave_the_model_another(run):
    _, _, model, _ = prepare(run())
    data = Description("text-classification")
    card = str(reporting.model_card(model, {}, data, run(), processes=1))
    model.__class__ = type(f"FSDP{type(model).__name__}", (FSDPModule, type(model)), {"__module__": "torch"})
    assert str(reporting.model_card(model, {}, data, run(), processes=1)) == card


def test_a_recipe_does_not_say_where_its_run_was_pushed_and_tracked(run, tmp_path):
    there = {"push_to_hub": True, "hub_model_id": "me/mine", "hub_private_repo": True, "report_to": "tensorboard"}
    assert reporting.recipe(run(**there)) == reporting.recipe(run())


NAMES = ["A|B", "`rm`", "<b>x</b>", "*a*", "$x$", "[a](b)", "a&amp;b", "back\\slash"]


def test_names_of_types_stay_text_in_the_table(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for file in ("train.txt", "valid.txt"):
        lines = [f"{word} B-{name}\n" for word, name in zip(glue_sample.WORDS, NAMES, strict=False)]
        (data / file).write_text("\n".join(lines), encoding="utf-8")
    model = ["--model_name_or_path", str(glue_sample.write_model(tmp_path))]
    model += ["--tokenizer_name", str(glue_sample.write_vocabulary(tmp_path)), "--output_dir", str(tmp_path / "out")]
    run_ner.main([*model, "--data_dir", str(data), *SHORT])
    text = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    table = text.partition("| type |")[2].partition("\n\n")[0].splitlines()[2:]
    assert len(table) == len(NAMES)
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 6 and not re.search(r"<|(?<!\\)[`*\[$]", row) for row in table)


@pytest.mark.parametrize("name", [*NAMES, 'a"b: c', "- a", "# a", "a\n---\nb", "a\n<script>", "{a}", "'"])
def test_names_of_folders_leave_a_card_whole(run, tmp_path, name):
    _, _, model, _ = prepare(run())
    args = run(output_dir=f"{tmp_path}/{name}", task_name="sst2\n")
    (tmp_path / "data" / name.partition("/")[0]).mkdir(parents=True)
    data = Description("token-classification", name, name)
    results = {"eval_f1": 0.5}
    card = ModelCard(reporting.model_card(model, results, data, args, processes=1).content)
    (result,) = card.data.eval_results
    assert (card.data.model_name, result.dataset_name, result.metric_value) == (Path(args.output_dir).name, name, 0.5)
    lines = card.text.splitlines()
    fences = [line for line in lines if re.fullmatch(r" {0,3}(`{3,}).*", line)]
    assert lines.count("## Recipe") == lines.count("## How to use") == 1
    blocks = re.findall(r"^(`{3,})\w+\n.*?^\1$", card.text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 4 and "<script>" not in "".join(line for line in lines[:8] if line not in fences)


def test_a_tagger_on_features_does_not_say_where_its_encoder_lay(tmp_path):
    model = ["--model_name_or_path", str(write_encoder(tmp_path)), "--output_dir", str(tmp_path / "out")]
    model += ["--tokenizer_name", str(glue_sample.write_vocabulary(tmp_path)), "--features", "last"]
    run_ner.main([*model, *data_of(run_ner, tmp_path), *SHORT])
    files = [path for path in (tmp_path / "out").iterdir() if path.is_file()]
    assert [path.name for path in files if str(tmp_path).encode() in path.read_bytes()] == []


def write_encoder(folder: Path) -> Path:
    config = BertConfig.from_json_file(glue_sample.write_model(folder))
    BertModel(config).save_pretrained(folder / "encoder")
    return folder / "encoder"


def test_data_from_a_folder_are_called_by_its_name(tmp_path):
    (tmp_path / "mine").mkdir()
    flags = ["--model_name_or_path", "m", "--output_dir", "o", "--do_eval", "--dataset_name"]
    for script, arguments in ((run_ner, run_ner.NerArguments), (run_squad, run_squad.SquadArguments)):
        for given, shown in ((str(tmp_path / "mine"), "mine"), ("lhoestq/conll2003", "lhoestq/conll2003")):
            assert script.describe_data(parse_arguments(arguments, [*flags, given])).dataset_type == shown


def test_published_arguments_have_names_and_hub_ids_but_no_folders(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "runs")
    changes = {"do_train": False, "do_eval": True, "model_name_or_path": "runs/a", "output_dir": "/x/y"}
    args = run(**changes, ensemble=f"runs/a,{tmp_path}/runs/*", hub_model_id="runs/a", config_overrides="a=b/c")
    shown = public_arguments(args)
    assert (shown["model_name_or_path"], shown["tokenizer_name"], shown["output_dir"]) == ("a", "vocab.txt", "y")
    assert (shown["ensemble"], shown["hub_model_id"], shown["config_overrides"]) == ("a,*", "runs/a", "a=b/c")
    assert public_arguments(run(tokenizer_name="link", output_dir="."))["tokenizer_name"] == "link"
    assert public_arguments(run(output_dir="."))["output_dir"] == tmp_path.name
    several = run(tokenizer_name="/home/me/a.txt, /home/me/b/*.txt,c")
    assert public_arguments(several)["tokenizer_name"] == "a.txt,*.txt,c"
    assert public_arguments(run(model_name_or_path="google-bert/bert"))["model_name_or_path"] == "google-bert/bert"
    assert shown.keys() == vars(args).keys() and shown["learning_rate"] == args.learning_rate
