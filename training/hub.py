"""Creates the repository for --push_to_hub, before the work so that a problem shows early, and pushes to it."""

import shlex

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError, HTTPError

from training.arguments import RunArguments, hub_model_id
from training.errors import FileError


# Files that are not pushed: only --resume, an ensemble or a tracker needs them.
LEFT_OUT = ("checkpoint-*", "seed-*/*", "outputs-*.safetensors", "wandb/*", "corpus/*", ".*")


def create_repository(args: RunArguments) -> str:
    """Creates the repository if it does not exist; returns its full name, with its owner.

    Raises OSError if it cannot be created, or the user may not write to it.
    """
    api, name = huggingface_hub.HfApi(), hub_model_id(args)
    try:
        name = api.create_repo(name, private=args.hub_private_repo or None, exist_ok=True).repo_id
        api.auth_check(name, write=True)
    except (OSError, HTTPError, ValueError) as error:
        reason = f"{_reason(error)}, or leave --push_to_hub out"
        raise FileError(f"cannot push to {name} on {constants.ENDPOINT}: {reason}") from error
    return name


def push(args: RunArguments) -> None:
    """Uploads the output folder without `LEFT_OUT`. Raises OSError with a command that uploads it later."""
    name, folder = hub_model_id(args), args.output_dir
    try:
        url = huggingface_hub.HfApi().upload_folder(repo_id=name, folder_path=folder, ignore_patterns=list(LEFT_OUT))
    except (OSError, HTTPError, ValueError) as error:
        excluded = " ".join(f"--exclude {shlex.quote(pattern)}" for pattern in LEFT_OUT)
        raise FileError(
            f"{folder} is complete, but could not be pushed to {name} on {constants.ENDPOINT}: {_reason(error)}. "
            f"Then: hf upload {shlex.quote(name)} {shlex.quote(folder)} . {excluded}"
        ) from error
    print(f"pushed to {url}")


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
