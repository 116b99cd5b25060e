from __future__ import annotations

import hashlib
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from planted_data import says

from exhume.core.contract import silent
from exhume.store import download
from exhume.store.download import File, Npm, Pip, SourceUnreachable, Web

BODY = bytes(range(256)) * 3000
SHA = hashlib.sha256(BODY).hexdigest()
WRONG = "0" * 64


class Handler(SimpleHTTPRequestHandler):
    cut = False

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def copyfile(self, source: object, outputfile: object) -> None:
        data = source.read()  # type: ignore[attr-defined]
        outputfile.write(data[:1000] if self.cut else data)  # type: ignore[attr-defined]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    root = tmp_path / "site"
    root.mkdir()
    (root / "file.bin").write_bytes(BODY)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(root)))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "target").mkdir()
    return tmp_path / "target"


def test_web(site: str, target: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    Web(site, (File("file.bin", SHA),)).bring(target, lambda *call: calls.append(call))
    assert (target / "file.bin").read_bytes() == BODY
    assert calls[0] == ("download file.bin", 0, len(BODY))
    assert calls[-1] == ("download file.bin", len(BODY), len(BODY))
    assert [done for _, done, _ in calls] == sorted(done for _, done, _ in calls)


def test_web_with_other_bytes(site: str, target: Path) -> None:
    text = says(lambda: Web(site, (File("file.bin", WRONG),)).bring(target, silent))
    assert text.startswith("file.bin: the download does not match its pinned checksum")


def test_web_that_does_not_end(site: str, target: Path) -> None:
    endless = Web(site, (File("file.bin", SHA, most=300_000),))
    assert "more than 300,000 bytes" in says(lambda: endless.bring(target, silent))
    assert not list(target.iterdir())


@pytest.mark.parametrize("path", ["absent.bin", "file.bin"])
def test_web_that_does_not_deliver(
    site: str, target: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Handler, "cut", True)
    with pytest.raises(
        SourceUnreachable, match="not found" if path == "absent.bin" else "closed after 1,000"
    ):
        Web(site, (File(path, SHA),)).bring(target, silent)


def test_web_without_anybody(target: Path) -> None:
    with pytest.raises(SourceUnreachable, match="refused"):
        Web("http://127.0.0.1:9/", (File("x", SHA),)).bring(target, silent)


class Client:
    """Stands for pip and npm: notes the command, leaves a file, ends with a code."""

    def __init__(self, name: str, *, code: int = 0, error: str = "") -> None:
        self.name, self.code, self.error = name, code, error
        self.command: list[str] = []
        self.environment: dict[str, str] = {}
        self.files: dict[str, str] = {}

    def __call__(self, command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        self.command, self.environment = command, options["env"]  # type: ignore[assignment]
        self.files = {p: Path(p).read_text() for p in command if p.endswith("requirements.txt")}
        limits = self.environment.get("PIP_CONSTRAINT", "")
        self.files |= {"limits": Path(limits).read_text()} if limits else {}
        flag = "--dest" if "--dest" in command else "--pack-destination"
        if self.name:
            Path(command[command.index(flag) + 1], self.name).write_bytes(BODY)
        return subprocess.CompletedProcess(command, self.code, "", self.error)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    planted = Client("p.pkg")
    monkeypatch.setattr(download.subprocess, "run", planted)
    monkeypatch.setattr(download.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.delenv("PIP_CONSTRAINT", raising=False)
    return planted


def test_pip_wheel(client: Client, target: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    Pip("p==1", File("p.pkg", SHA)).bring(target, lambda *call: calls.append(call))
    assert {"--no-deps", "--require-hashes", "--only-binary"} <= set(client.command)
    assert list(client.files.values()) == [f"p==1 --hash=sha256:{SHA}\n"]
    assert calls == [("pip download p==1", 0, 1), ("pip download p==1", 1, 1)]


def test_pip_source_package_is_built_within_limits(client: Client, target: Path) -> None:
    Pip("p==1", File("p.pkg", SHA), wheel=False, build="setuptools<81").bring(target, silent)
    assert client.files["limits"] == "setuptools<81\n"
    assert client.environment["PIP_BUILD_CONSTRAINT"] == client.environment["PIP_CONSTRAINT"]
    assert "--no-binary" in client.command


def test_npm(client: Client, target: Path) -> None:
    Npm("p@1", File("p.pkg", SHA)).bring(target, silent)
    assert client.command[:3] == ["/bin/npm", "pack", "p@1"]
    assert "--ignore-scripts" in client.command


ORIGINS = pytest.mark.parametrize("origin", [Pip, Npm])


@ORIGINS
def test_package_with_other_bytes(client: Client, target: Path, origin: type[Pip | Npm]) -> None:
    text = says(lambda: origin("p==1", File("p.pkg", WRONG)).bring(target, silent))
    assert text.startswith("p.pkg: the download does not match its pinned checksum")


@ORIGINS
def test_package_without_the_file(client: Client, target: Path, origin: type[Pip | Npm]) -> None:
    with pytest.raises(SourceUnreachable, match=r"p==1 did not contain q\.pkg"):
        origin("p==1", File("q.pkg", SHA)).bring(target, silent)


@ORIGINS
def test_client_that_fails(client: Client, target: Path, origin: type[Pip | Npm]) -> None:
    client.code, client.error = 1, "WARNING: slow\nERROR: nobody there\n"
    with pytest.raises(SourceUnreachable, match=r"p==1: ERROR: nobody there$"):
        origin("p==1", File("p.pkg", SHA)).bring(target, silent)
    client.error = ""
    with pytest.raises(SourceUnreachable, match="failed without a message"):
        origin("p==1", File("p.pkg", SHA)).bring(target, silent)


def test_pip_finds_the_mismatch_itself(client: Client, target: Path) -> None:
    client.code, client.error = 1, "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM ...\n"
    text = says(lambda: Pip("p==1", File("p.pkg", SHA)).bring(target, silent))
    assert "pip download p==1: the download does not match its pinned checksum" in text


def test_no_npm(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download.shutil, "which", lambda _: None)
    with pytest.raises(SourceUnreachable, match="npm is not installed"):
        Npm("p@1", File("p.pkg", SHA)).bring(target, silent)


def test_client_that_hangs(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("pip", 1)

    monkeypatch.setattr(download.subprocess, "run", hang)
    with pytest.raises(SourceUnreachable, match="timed out"):
        Pip("p==1", File("p.pkg", SHA)).bring(target, silent)
