"""Uploads folders to the Hub: which of their files, again where the Hub fails, and the scores for its benchmarks."""

import glob
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import huggingface_hub
import yaml
from huggingface_hub import EvalResult, ModelCard, constants
from huggingface_hub.errors import HfHubHTTPError, HTTPError
from huggingface_hub.utils import filter_repo_objects

from elmo_gpt_bert.training.checksums import SHA256SUMS, loaded_names
from elmo_gpt_bert.training.errors import FileError


Result = TypeVar("Result")

# Files that are not pushed: only --resume, an ensemble or a tracker needs them.
LEFT_OUT = ("checkpoint-*", "seed-*/*", "outputs-*.safetensors", "wandb/*", "corpus/*", ".*")
PASSING = (408, 429)  # statuses of errors that may be gone at the next try, as those from 500 on
# Seconds between two tries: short before the work, when someone may be waiting, and long after it. huggingface_hub
# also tries again, within half a minute, but not when it creates a repository.
BEFORE, AFTER = (1, 5), (5, 20, 60, 180)
CARD = "README.md"
LEADERBOARD = r"(AX|CoLA|MNLI-mm?|MRPC|QNLI|QQP|RTE|SST-2|STS-B|WNLI)\.tsv"
PREDICTIONS = re.compile(rf"((nbest_)?predictions|null_odds)[^/]*|{LEADERBOARD}")


def pushed_files(folder: Path) -> dict[str, int]:
    """The files of a folder that are pushed, with their sizes in bytes."""
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    return {name: sizes[name] for name in filter_repo_objects(sorted(sizes), ignore_patterns=[*LEFT_OUT])}


def create_repository(name: str, private: bool) -> str:
    """Creates the repository if it does not exist; returns its full name, with its owner.

    Raises OSError if it cannot be created, or the user may not write to it.
    """
    api = huggingface_hub.HfApi()
    try:
        name = _patiently(lambda: api.create_repo(name, private=private or None, exist_ok=True).repo_id, BEFORE)
        _patiently(lambda: api.auth_check(name, write=True), BEFORE)
    except (OSError, HTTPError, ValueError) as error:
        raise FileError(f"cannot push to {name} on {constants.ENDPOINT}: {_reason(error)}") from error
    return name


def push(name: str, folder: Path) -> None:
    """Uploads the `pushed_files` of a folder, then the `benchmark_results` of its card.

    Files that the repository has already are not sent again, so an upload that was interrupted goes on when it is
    repeated. The `_superseded_files` of an earlier push go in the same commit. Raises OSError with a command that
    uploads the folder.
    """
    api, patterns = huggingface_hub.HfApi(), [glob.escape(file) for file in pushed_files(folder)]
    try:
        old = [glob.escape(file) for file in _patiently(lambda: _superseded_files(api, name), AFTER)]
        url = _patiently(
            lambda: api.upload_folder(
                repo_id=name, folder_path=folder, allow_patterns=patterns, delete_patterns=old or None
            ),
            AFTER,
        )
        for result in benchmark_results(folder):
            if (task := _patiently(lambda result=result: _benchmark_task(result), AFTER)) is not None:
                content, path = result.entry(task).encode(), f".eval_results/{result.file}"
                _patiently(
                    lambda content=content, path=path: api.upload_file(
                        path_or_fileobj=content, path_in_repo=path, repo_id=name
                    ),
                    AFTER,
                )
                print(f"{path}: {result.metric} on the benchmark {result.dataset}")
    except (OSError, HTTPError, ValueError) as error:
        raise FileError(
            f"{folder} is complete, but could not be pushed to {name} on {constants.ENDPOINT}: {_reason(error)}. "
            f"Then: {upload_command(name, folder)}"
        ) from error
    print(f"pushed to {url}")


def upload_command(name: str, folder: Path) -> str:
    """The command line that uploads the `pushed_files` of a folder: the Hub's client, without this project's code."""
    patterns = [word for pattern in LEFT_OUT for word in ("--exclude", pattern)]
    return shlex.join(["hf", "upload", name, str(folder), *patterns])


def _superseded_files(api: huggingface_hub.HfApi, name: str) -> list[str]:
    """The files of an earlier push that must not stand beside another model: those it listed and loads, predictions.

    The next push replaces those that it has, too. All other files are the user's.
    """
    files = api.list_repo_files(name)
    listed = loaded_names(Path(api.hf_hub_download(name, SHA256SUMS))) if SHA256SUMS in files else set()
    return [file for file in files if file in listed or PREDICTIONS.fullmatch(file)]


# Errors


def _patiently(call: Callable[[], Result], waits: tuple[int, ...]) -> Result:
    """What `call` returns. Calls it again after each of these waits, in seconds, while the Hub fails."""
    for wait in waits:
        try:
            return call()
        except HTTPError as error:
            status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
            if status is not None and status not in PASSING and status < 500:
                raise
            answer = "cannot be reached" if status is None else f"answered with an error ({status})"
            print(f"{constants.ENDPOINT} {answer}: next try in {wait} seconds", file=sys.stderr)
        time.sleep(wait)
    return call()


def _reason(error: Exception) -> str:
    """The problem and its remedy, in one line."""
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if constants.is_offline_mode():
        return "HF_HUB_OFFLINE is set: unset it"
    if status == 401 and huggingface_hub.get_token() is None:
        return "you are not logged in: run `hf auth login` or set HF_TOKEN"
    if status == 401:
        return "the token was not accepted (401): run `hf auth login` or set HF_TOKEN with a valid one"
    if status == 403:
        tokens = f"{constants.ENDPOINT}/settings/tokens"
        return f"the token may not write there (403): change that at {tokens}, give another --hub_model_id"
    if status is not None:
        return f"the Hub answered with an error ({status}): try again later"
    if isinstance(error, HTTPError):
        return f"it cannot be reached ({str(error) or type(error).__name__}): check the network, try again later"
    remedy = "give another --hub_model_id" if isinstance(error, ValueError) else "correct that"
    return f"{' '.join(str(error).split()).rstrip('.')}: {remedy}"


# Benchmarks. A data set of the Hub is one if it has a tag that says so, and then has an eval.yaml, which lists its
# tasks: https://huggingface.co/docs/hub/eval-results. Its page shows the scores that models have in .eval_results/.


@dataclass(frozen=True)
class BenchmarkResult:
    """The first score that a card has for a split of a data set of the Hub."""

    dataset: str
    config: str | None
    split: str
    metric: str
    value: float

    @property
    def file(self) -> str:
        name = "-".join(filter(None, (self.dataset.split("/")[-1], self.config, self.split)))
        return f"{name}.yaml"

    def entry(self, task: str) -> str:
        """The content of the file in .eval_results/."""
        notes = f"{self.metric} on the {self.split} split"
        entry = {"dataset": {"id": self.dataset, "task_id": task}, "value": self.value, "notes": notes}
        return yaml.safe_dump([entry], sort_keys=False)


def benchmark_results(folder: Path) -> list[BenchmarkResult]:
    """The scores of a folder's card that would count if their data sets are benchmarks. A cut split has none there."""
    results: dict[tuple[str, str | None, str], BenchmarkResult] = {}
    for score in _scores(folder / CARD):
        place = (score.dataset_type, score.dataset_config, score.dataset_split)
        if "/" in score.dataset_type and score.dataset_split is not None:
            results.setdefault(place, BenchmarkResult(*place, score.metric_type, score.metric_value))
    return [*results.values()]


def _scores(card: Path) -> Iterator[EvalResult]:
    if card.is_file():
        yield from ModelCard.load(card).data.eval_results or []


def _benchmark_task(result: BenchmarkResult) -> str | None:
    """The benchmark's id of the task that the result is of; None if there is none, or no benchmark."""
    try:
        tags = huggingface_hub.HfApi().dataset_info(result.dataset).tags or []
        if not any(tag.startswith("benchmark:") for tag in tags):
            return None
        path = huggingface_hub.hf_hub_download(result.dataset, "eval.yaml", repo_type="dataset")
    except HfHubHTTPError as error:
        if error.response.status_code in (401, 403, 404):  # it is not there, or not for everyone
            return None
        raise
    for task in yaml.safe_load(Path(path).read_text(encoding="utf-8")).get("tasks", []):
        if (task.get("config", "default"), task.get("split")) == (result.config or "default", result.split):
            return task["id"]
    return None
