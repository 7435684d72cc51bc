"""A stand-in for the Hugging Face Hub on the loopback interface, for tests that push and pull without a network.

It keeps model repositories in memory and answers what `huggingface_hub` 2.4 and `transformers` 5.24 ask (`ROUTES`).
The client reads `HF_ENDPOINT` once, when it is imported; so it runs in a process of its own, or is told by `log_in`.

    with HubServer() as hub:
        subprocess.run(command, env=os.environ | {"HF_ENDPOINT": hub.url, "HF_TOKEN": hub.token})
        log_in(monkeypatch, hub, tmp_path / "cache")  # or in this process
        hub.files("me/tiny-bert")["config.json"]

`hub.broken` has the endpoints that are to fail, each with its status, {"commit": 500}, or with those of its next
answers, {"commit": [500, 503]}.
Left out: data sets, spaces, LFS and xet (every file is sent inside its commit), pull requests,
tags, and any rights but those of one token, whose owner is "me".
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import huggingface_hub
import pytest
from huggingface_hub import constants, hf_api


class Refusal(Exception):
    """An answer that is not 200. `code` decides which exception the client raises: RepoNotFound, EntryNotFound, ..."""

    def __init__(self, status: int, code: str, message: str, **body: str) -> None:
        self.status, self.body = status, {"error": message} | body
        self.headers = {"X-Error-Code": code, "X-Error-Message": message}


FIRST_COMMIT = f"{0:040x}"  # a commit's id is its number, in the 40 hexadecimal digits that the client takes for one


@dataclass
class Repo:
    """One model repository: a commit is a snapshot of all files, a branch is the id of its last commit."""

    private: bool
    commits: dict[str, dict[str, bytes]] = field(default_factory=lambda: {FIRST_COMMIT: {}})
    branches: dict[str, str] = field(default_factory=lambda: {"main": FIRST_COMMIT})

    def commit_id(self, revision: str) -> str:
        """The commit that a branch name, or a commit id itself, stands for."""
        commit = self.branches.get(revision, revision)
        if commit not in self.commits:
            raise Refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit

    def files(self, revision: str) -> dict[str, bytes]:
        return self.commits[self.commit_id(revision)]


def blob_id(content: bytes) -> str:
    """Git's id of a file's content, by which the client sees that it need not send the file again."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """One request and, as methods, the endpoints: they read what `answer` found in its headers, path and body."""

    server: "HubServer"
    signed_in: bool
    parts: dict[str, str]  # the named groups of the route
    lines: list[dict]  # the body, one JSON document a line
    revision: str

    @property
    def repo(self) -> Repo:
        """The repository in the path. As on the Hub, a private one does not exist for a client without the token."""
        repo = self.server.repos.get(self.parts["id"])
        if repo is None or (repo.private and not self.signed_in):
            raise Refusal(404 if self.signed_in else 401, "RepoNotFound", "Repository not found")
        return repo

    def validate_card(self) -> dict:
        """Accepts every model card: what one says is for the tests to check."""
        return {"errors": [], "warnings": []}

    def create_repo(self) -> dict:
        """Opens a repository with an empty first commit. 409 when it exists, which `exist_ok=True` accepts."""
        wish = self.lines[0]
        repo_id = f"{wish['organization'] or 'me'}/{wish['name']}"
        url = f"{self.server.url}/{repo_id}"
        if repo_id in self.server.repos:
            raise Refusal(409, "RepoExists", "You already created this model repo", url=url)
        self.server.repos[repo_id] = Repo(private=wish.get("visibility") == "private")
        return {"url": url}

    def create_branch(self) -> dict:
        if self.revision in self.repo.branches:
            raise Refusal(409, "BranchExists", f"Reference already exists: refs/heads/{self.revision}")
        self.repo.branches[self.revision] = self.repo.commit_id(self.lines[0].get("startingPoint", "main"))
        return {}

    def check_write(self) -> dict:
        """Whether the token may write, which has been found already; 404 where there is no such repository."""
        return {"id": self.repo and self.parts["id"]}

    def model_info(self) -> dict:
        """Names the commit, `sha`, to which the client pins a load."""
        return {"id": self.parts["id"], "sha": self.repo.commit_id(self.revision)}

    def tree(self) -> list[dict]:
        """Lists the files of a revision, or of a folder in it; always recursively."""
        folder, files = self.parts.get("folder", ""), self.repo.files(self.revision)
        inside = [(path, data) for path, data in files.items() if path.startswith(folder)]
        return [{"type": "file", "path": path, "size": len(data), "oid": blob_id(data)} for path, data in inside]

    def preupload(self) -> dict:
        """Says that every file goes into the commit itself, and which content the branch already has."""
        plan = {"uploadMode": "regular", "shouldIgnore": False}
        oids = {path: blob_id(data) for path, data in self.repo.files(self.revision).items()}
        paths = [file["path"] for file in self.lines[0]["files"]]
        return {"files": [plan | {"path": path, "oid": oids.get(path)} for path in paths]}

    def commit(self) -> dict:
        """Puts the files of a commit, one a line after the header, on top of the branch, or removes them."""
        files = dict(self.repo.files(self.revision))
        for line in self.lines[1:]:
            path = line["value"]["path"]
            if line["key"] == "deletedFile":
                del files[path]
            elif line["key"] == "file":
                files[path] = base64.b64decode(line["value"]["content"])
            else:
                raise Refusal(400, "BadRequest", f"the stand-in does not know the operation {line['key']!r}")
        commit = f"{len(self.repo.commits):040x}"
        self.repo.commits[commit], self.repo.branches[self.revision] = files, commit
        return {"commitOid": commit, "commitUrl": f"{self.server.url}/{self.parts['id']}/commit/{commit}"}

    def download(self) -> bytes:
        content = self.repo.files(self.revision).get(self.parts["path"])
        if content is None:
            raise Refusal(404, "EntryNotFound", f"{self.parts['path']} does not exist")
        return content

    def answer(self) -> dict | list | bytes:
        """Finds the endpoint of this request and calls it. Whoever changes something needs the token."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.signed_in = self.headers.get("Authorization") == f"Bearer {self.server.token}"
        if self.command == "POST" and not self.signed_in:
            raise Refusal(401, "Unauthorized", "Invalid credentials in Authorization header")
        for verbs, pattern, endpoint in ROUTES:
            if self.command in verbs and (match := re.fullmatch(pattern, urlsplit(self.path).path)):
                self.parts = {name: unquote(part) for name, part in match.groupdict().items() if part}
                self.lines = [json.loads(line) for line in body.splitlines()]
                self.revision = self.parts.get("revision", "main")
                status = self.server.broken.get(endpoint.__name__)
                if isinstance(status, list):
                    status = status.pop(0) if status else None
                if status:
                    raise Refusal(status, "", "out of order")
                return endpoint(self)
        raise Refusal(501, "NoRoute", f"the stand-in has no route {self.command} {self.path}")

    def respond(self) -> None:
        """Writes the answer. A file carries the commit and the content's id by which the client caches it."""
        status, headers = 200, {}
        try:
            answer = self.answer()
            if isinstance(answer, bytes):
                of_model = self.parts["id"] in self.server.repos
                commit = self.repo.commit_id(self.revision) if of_model else FIRST_COMMIT
                headers = {"X-Repo-Commit": commit, "ETag": f'"{blob_id(answer)}"'}
        except Refusal as refusal:
            status, headers, answer = refusal.status, refusal.headers, refusal.body
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        for header in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(*header)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_POST = respond

    def log_message(self, format: str, *args: object) -> None:
        """Stays silent: the client reports what goes wrong."""


MODEL, REVISION = r"(?P<id>[^/]+(/[^/]+)?)", r"(?P<revision>[^/]+)"  # a model without owner is asked for, too
ROUTES: list[tuple[set[str], str, Callable[[Handler], dict | list | bytes]]] = [
    ({"POST"}, "/api/validate-yaml", Handler.validate_card),
    ({"POST"}, "/api/repos/create", Handler.create_repo),
    ({"POST"}, f"/api/models/{MODEL}/branch/{REVISION}", Handler.create_branch),
    ({"GET"}, f"/api/models/{MODEL}/auth-check/write", Handler.check_write),
    ({"GET"}, f"/api/models/{MODEL}(/revision/{REVISION})?", Handler.model_info),
    ({"GET"}, f"/api/models/{MODEL}/tree/{REVISION}(/(?P<folder>.+))?", Handler.tree),
    ({"POST"}, f"/api/models/{MODEL}/preupload/{REVISION}", Handler.preupload),
    ({"POST"}, f"/api/models/{MODEL}/commit/{REVISION}", Handler.commit),
    ({"GET", "HEAD"}, f"/{MODEL}/resolve/{REVISION}/(?P<path>.+)", Handler.download),
]


class HubServer(HTTPServer):
    """The Hub of one `with` block: a free port of 127.0.0.1, one request after the other, all forgotten at the end."""

    token = "hf_loopback"

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.repos: dict[str, Repo] = {}
        self.broken: dict[str, int | list[int]] = {}  # methods of `Handler` that answer with these statuses instead

    def files(self, repo_id: str, revision: str = "main") -> dict[str, bytes]:
        return self.repos[repo_id].files(revision)

    def __enter__(self) -> "HubServer":
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()
        self.server_close()


def log_in(monkeypatch: pytest.MonkeyPatch, hub: HubServer, cache: Path) -> None:
    """Makes `hub` the Hub of this process, with the rights of its user and an empty cache."""
    huggingface_hub.utils.disable_progress_bars()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(hf_api, "ENDPOINT", hub.url, raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nowhere")
    monkeypatch.setenv("HF_TOKEN", hub.token)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
