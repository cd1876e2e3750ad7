"""Models on the Hugging Face hub: loaded from there and sent there."""

import hashlib
import json
import os
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from mistrnn import SequenceClassifier
from tests.estimators.data import fitted


class Hub(BaseHTTPRequestHandler):
    """As much of the Hugging Face hub as a download needs: what a repository holds, and its files."""

    folder: Path
    commit = "0123456789abcdef0123456789abcdef01234567"

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path.startswith("/api/models/me/slopes"):
            names = sorted(os.listdir(self.folder))
            about = {"id": "me/slopes", "sha": self.commit, "siblings": [{"rfilename": name} for name in names]}
            tree = [
                {"type": "file", "path": name, "oid": "0", "size": (self.folder / name).stat().st_size}
                for name in names
            ]
            self._answer(json.dumps(tree if "/tree/" in path else about).encode(), "application/json")
        elif path.startswith("/me/slopes/resolve/"):
            self._answer((self.folder / path.split("/")[-1]).read_bytes(), "application/octet-stream")
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _answer(self, data: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", self.commit)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    constants = pytest.importorskip("huggingface_hub.constants")
    handler = type("TheHub", (Hub,), {"folder": tmp_path / "hub"})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    # It reads its address from the environment when it is loaded.
    monkeypatch.setattr(constants, "ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    yield tmp_path / "hub"
    server.shutdown()
    server.server_close()


def test_a_model_comes_from_the_hub(hub: Path, tmp_path: Path) -> None:
    model, x, _ = fitted(SequenceClassifier)
    model.save_pretrained(hub)
    (hub / "large.bin").write_bytes(b"not asked for")
    loaded = SequenceClassifier.from_pretrained("me/slopes", cache_dir=str(tmp_path / "cache"))
    np.testing.assert_array_equal(loaded.predict_proba(x), model.predict_proba(x))
    assert not list((tmp_path / "cache").rglob("large.bin"))
    with pytest.raises(ValueError, match="me/other: there is no such folder, and the Hugging Face hub did not give it"):
        SequenceClassifier.from_pretrained("me/other", cache_dir=str(tmp_path / "cache"))


def test_a_model_goes_to_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")
    sent: dict[str, Any] = {}

    def create_repo(self: Any, name: str, **given: Any) -> None:
        sent.update(given, made=name)

    def upload_folder(self: Any, *, repo_id: str, folder_path: str, commit_message: str) -> None:
        sent.update(to=repo_id, files={path.name: path.read_bytes() for path in Path(folder_path).iterdir()})

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", create_repo)
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload_folder)
    address = fitted(SequenceClassifier)[0].push_to_hub("me/slopes", private=True)
    assert address.endswith("/me/slopes")
    assert sent["made"] == sent["to"] == "me/slopes"
    assert sent["private"] is True
    assert sorted(sent["files"]) == ["README.md", "config.json", "model.safetensors"]
    assert b'SequenceClassifier.from_pretrained("me/slopes")' in sent["files"]["README.md"]

    def refuse(self: Any, *_: Any, **given: Any) -> None:
        raise RuntimeError("no network\nwith details")  # the hub's library has errors of other libraries

    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", refuse)
    with pytest.raises(ValueError, match=r"me/slopes: the Hugging Face hub did not take it: no network$"):
        fitted(SequenceClassifier)[0].push_to_hub("me/slopes")


def test_without_the_hubs_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match=r"me/slopes: there is no such folder, and .* pip install 'mistrnn\[hub\]'"):
        SequenceClassifier.from_pretrained("me/slopes")
