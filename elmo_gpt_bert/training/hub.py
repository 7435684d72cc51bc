"""Uploads folders to the Hub: which of their files, and what to do where the Hub refuses them."""

import glob
import re
import shlex
from pathlib import Path

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError, HTTPError
from huggingface_hub.utils import filter_repo_objects

from elmo_gpt_bert.training.digests import SHA256SUMS, loaded_names
from elmo_gpt_bert.training.errors import FileError


# Files that are not pushed: only --resume, an ensemble or a tracker needs them.
LEFT_OUT = ("checkpoint-*", "seed-*/*", "outputs-*.safetensors", "wandb/*", "corpus/*", ".*")
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
        name = api.create_repo(name, private=private or None, exist_ok=True).repo_id
        api.auth_check(name, write=True)
    except (OSError, HTTPError, ValueError) as error:
        raise FileError(
            f"cannot push to {name} on {constants.ENDPOINT}: {_reason(error)}, or leave --push_to_hub out"
        ) from error
    return name


def push(name: str, folder: Path) -> None:
    """Uploads the `pushed_files` of a folder. huggingface_hub tries again where the Hub fails for a while.

    Files that the repository has already are not sent again, so an upload that was interrupted goes on when it is
    repeated. The `_superseded_files` of an earlier push go in the same commit. Raises OSError with a command that
    uploads the folder.
    """
    api, patterns = huggingface_hub.HfApi(), [glob.escape(file) for file in pushed_files(folder)]
    try:
        old = [glob.escape(file) for file in _superseded_files(api, name)]
        url = api.upload_folder(repo_id=name, folder_path=folder, allow_patterns=patterns, delete_patterns=old or None)
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
