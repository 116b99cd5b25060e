"""Files that once ended in a traceback, a full memory or a started program; each ends in a sentence now."""

from __future__ import annotations

import json
import struct
import subprocess
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from exhume import readers
from exhume.cli import app
from exhume.core.contract import ExhumeError
from exhume.readers.fitted import read_skops, release_of_fitted
from exhume.readers.images import Blob, stack
from exhume.readers.table import table
from exhume.readers.tensors import read_tensors
from exhume.settings import Brief

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, of odd tensors
POSTSCRIPT = (
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n(started) print quit\n%%EOF\n"
)


def refuse_programs(monkeypatch):
    def started(*given, **more):
        raise AssertionError(f"a program was started: {given}")

    monkeypatch.setattr(subprocess, "Popen", started)
    monkeypatch.setattr(subprocess, "check_call", started)
    monkeypatch.setattr("PIL.EpsImagePlugin.has_ghostscript", lambda: True)
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", started)


def test_postscript_is_no_picture_whatever_its_name(tmp_path, monkeypatch):
    refuse_programs(monkeypatch)
    (tmp_path / "a.png").write_bytes(POSTSCRIPT)
    with pytest.raises(ExhumeError, match=r"a\.png: unreadable or truncated image"):
        readers.load(tmp_path)
    with pytest.raises(ExhumeError, match="record 0: unreadable or truncated image"):
        stack([Blob("record 0", POSTSCRIPT)])


@pytest.mark.parametrize("kind", ["gif", "ico", "pcx", "tga", "dds"])
def test_formats_that_are_not_listed_are_not_decoded(kind, tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.jpg", format=kind)
    with pytest.raises(ExhumeError, match=r"a\.jpg: unreadable or truncated image"):
        readers.load(tmp_path)


@pytest.mark.parametrize("kind", ["png", "jpeg", "bmp", "ppm", "tiff", "webp"])
def test_formats_that_are_listed_are_read_whatever_their_ending(kind, tmp_path):
    Image.new("L", (8, 8)).save(tmp_path / "a.png", format=kind)
    assert readers.load(tmp_path).inputs.shape[2:] == (8, 8)


def saved(tmp_path, **tensors) -> Path:
    torch.save(tensors, tmp_path / "net.pt")
    return tmp_path / "net.pt"


def sparse() -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.tensor([[0]]), torch.tensor([1.0]), (10**6,))


ODD = {
    "expanded": (
        lambda: torch.zeros(1).expand(200_000, 200_000),
        "w has 40,000,000,000 numbers, its storage 1",
    ),
    "overlapping": (
        lambda: torch.zeros(1000).as_strided((900, 100), (1, 1)),
        "w has 90,000 numbers, its storage 1,000",
    ),
    "sparse": (sparse, "w is a sparse tensor, a plain one is needed"),
    "compressed": (
        lambda: torch.eye(3).to_sparse_csr(),
        "w is a sparse tensor, a plain one is needed",
    ),
    "meta": (lambda: torch.zeros(3, device="meta"), "w is a meta tensor, a plain one is needed"),
    "nested": (
        lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
        "w is a nested tensor, a plain one is needed",
    ),
    "quantised": (
        lambda: torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.qint8),
        "w is a quantised tensor, a plain one is needed",
    ),
    "float8": (lambda: torch.zeros(3).to(torch.float8_e4m3fn), "w holds float8_e4m3fn values"),
    "uint32": (lambda: torch.zeros(3).to(torch.uint32), "w holds uint32 values"),
}


@pytest.mark.parametrize("kind", ODD)
def test_tensors_that_are_not_plain(kind, tmp_path):
    tensor, sentence = ODD[kind]
    with pytest.raises(ExhumeError, match=f"^checkpoint: {sentence}"):
        read_tensors(saved(tmp_path, w=tensor()))


def test_many_views_of_one_storage_are_counted_one_by_one(tmp_path, monkeypatch):
    monkeypatch.setattr("exhume.store.memory.memory_free", lambda: 10_000_000.0)
    base = torch.zeros(1000, 100)
    assert len(read_tensors(saved(tmp_path, a=base, b=base))[0]) == 2  # tied weights
    with pytest.raises(ExhumeError, match=r"need 80\.0 MB of memory"):
        read_tensors(saved(tmp_path, **{f"w{i}": base for i in range(100)}))


def safetensors_of(kind: str, bits: int) -> bytes:
    header = {"w": {"dtype": kind, "shape": [8], "data_offsets": [0, bits]}}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(bits)


@pytest.mark.parametrize(
    ("kind", "size"),
    [("F4", 4), ("F6_E2M3", 6), ("F8_E8M0", 8), ("F8_E4M3", 8), ("U64", 64), ("C64", 64)],
)
def test_types_of_numbers_that_nobody_reads(kind, size, tmp_path):
    path = tmp_path / "net.safetensors"
    path.write_bytes(safetensors_of(kind, size))
    with pytest.raises(ExhumeError, match="^checkpoint: "):
        read_tensors(path)


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 5000,
        "a = " + "{b = " * 5000,
        "seed = " + "1" * 5000,
        "x = " + "\n" * 3 + "\0",
        "a" + ".a" * 5000 + " = 1",
    ],
    ids=["brackets", "braces", "digits", "nul", "dots"],
)
def test_a_brief_that_python_cannot_hold(text, tmp_path):
    (tmp_path / "audit.toml").write_text(text)
    with pytest.raises(ExhumeError, match=r"audit\.toml") as raised:
        Brief.from_toml(tmp_path / "audit.toml")
    assert len(str(raised.value)) < 1000


def test_a_brief_without_end_is_not_read_to_its_end():
    with pytest.raises(ExhumeError, match="more than 1,048,576 bytes"):
        Brief.from_toml(Path("/dev/zero"))


@pytest.mark.parametrize(
    ("section", "key"),
    [("victim", "steps"), ("data", "shadows"), ("checkpoint", "steps"), ("update", "steps")],
)
def test_numbers_that_nobody_can_wait_for(section, key, tmp_path):
    start = {"checkpoint": 'file = "net.pt"\n'}.get(section, "")
    (tmp_path / "audit.toml").write_text(f"[{section}]\n{start}{key} = 100000000000\n")
    with pytest.raises(ExhumeError, match=f"{key}: 100000000000 given, at most 1,000,000,000 are"):
        Brief.from_toml(tmp_path / "audit.toml")


def write_arrow(path: Path, rows: pyarrow.Table) -> None:
    with (
        pyarrow.OSFile(str(path), "wb") as sink,
        pyarrow.ipc.new_stream(sink, rows.schema) as writer,
    ):
        writer.write_table(rows)


def hub(tmp_path, state=None, splits=None) -> Path:
    folder = tmp_path / "saved"
    part = folder / "train" if splits else folder
    part.mkdir(parents=True)
    features = {
        "x": {"_type": "Value", "dtype": "float32"},
        "y": {"_type": "Value", "dtype": "int64"},
    }
    (part / "dataset_info.json").write_text(json.dumps({"features": features}))
    whole = json.dumps({"_data_files": [{"filename": "data.arrow"}]})
    (part / "state.json").write_text(state or whole)
    rows = pyarrow.table({"x": np.arange(4, dtype=np.float32), "y": np.arange(4) % 2})
    write_arrow(part / "data.arrow", rows)
    if splits:
        (folder / "dataset_dict.json").write_text(json.dumps({"splits": splits}))
    return folder


@pytest.mark.parametrize("name", ["../other", "/tmp", "..", ".", "a/b", "a\\b", "", "a\0b"])
def test_a_split_stays_in_its_folder(name, tmp_path):
    folder = hub(tmp_path, splits=[name])
    with pytest.raises(ExhumeError, match=r"dataset_dict\.json: .* is no name of a split"):
        readers.load(folder)


@pytest.mark.parametrize(
    "state",
    ["[" * 100_000, '{"_data_files": [{"filename": "a\\u0000b"}]}', '{"a": ' + "1" * 5000 + "}"],
    ids=["deep", "nul", "digits"],
)
def test_a_state_that_cannot_be(state, tmp_path):
    with pytest.raises(ExhumeError, match=r"state\.json") as raised:
        readers.load(hub(tmp_path, state))
    assert len(str(raised.value)) < 1000


def test_arrow_rows_that_take_no_room_are_not_listed(tmp_path):
    folder = hub(tmp_path)
    rows = pyarrow.table({"x": pyarrow.nulls(1 << 28), "y": pyarrow.nulls(1 << 28)})
    write_arrow(folder / "data.arrow", rows)
    with pytest.raises(ExhumeError, match="promises 268,435,456 records in"):
        readers.load(folder)


def test_a_column_wider_than_any_number(tmp_path):
    (tmp_path / "a.csv").write_text("a,y\n-1.7e308,0\n1.7e308,1\n0,1\n")
    with pytest.raises(
        ExhumeError, match=r"column 'a' goes from -1\.7e\+308 to 1\.7e\+308, too far"
    ):
        table(tmp_path / "a.csv")


def fitted(tmp_path, **changes) -> Path:
    skops = pytest.importorskip("skops.io")
    from sklearn.linear_model import LogisticRegression

    x = np.random.default_rng(0).random((20, 4))
    model = LogisticRegression().fit(x, np.arange(20) % 2)
    for name, value in changes.items():
        setattr(model, name, value)
    skops.dump(model, tmp_path / "model.skops")
    return tmp_path / "model.skops"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"coef_": np.full((1, 4), np.nan)}, "coef_ holds NaN or infinite values"),
        ({"intercept_": np.array([np.inf])}, "intercept_ holds NaN or infinite values"),
        ({"intercept_": np.zeros(3)}, r"coef_ and intercept_ have shapes \(1, 4\) and \(3,\), "),
        ({"coef_": "four"}, "coef_ is no array of numbers"),
        ({"coef_": np.zeros((1, 4), dtype=complex)}, "coef_ is no array of numbers"),
        ({"C": "one"}, "C: 'one' given, a number above 0 is needed"),
        ({"C": -1.0}, r"C: '-1\.0' given, a number above 0 is needed"),
        ({"solver": np.zeros(7)}, "solver is neither a text nor a number"),
        ({"fit_intercept": np.zeros(7)}, "fit_intercept is neither a text nor a number"),
        ({"tol": "small"}, "tol: 'small' given, a number above 0 is needed"),
    ],
)
def test_a_model_that_was_never_fitted_so(changes, sentence, tmp_path):
    with pytest.raises(ExhumeError, match=f"^model: {sentence}"):
        release_of_fitted(read_skops(fitted(tmp_path, **changes)), (4,))


EVIL = "a\x1b[2J\x9b31m\x07b"


def test_names_of_files_reach_no_terminal_raw(tmp_path):
    folder = tmp_path / EVIL
    (folder / "one\x1b]0;title\x07").mkdir(parents=True)
    for where in (folder, folder / "one\x1b]0;title\x07", tmp_path / f"{EVIL}\n.toml"):
        given = [str(where)] if where.suffix else ["--data", str(where)]
        result = CliRunner().invoke(app, ["audit", *given, "--out", str(tmp_path / "out")])
        assert result.exit_code == 2
        assert not set("\x1b\x9b\x07") & set(result.output)
        assert r"a\u001b[2J\u009b31m\u0007b" in result.output
        assert len(result.output.splitlines()) == 1


@pytest.mark.parametrize(
    "given",
    [
        (EVIL,),
        ("audit", EVIL, EVIL, EVIL),
        ("audit", "--fixed", EVIL),
        ("audit", f"--{EVIL}"),
        ("audit", f"-{EVIL}"),
        ("study", EVIL),
        ("study", "run", "informed-mnist", EVIL),
        ("data", "list", EVIL),
    ],
)
def test_arguments_reach_no_terminal_raw(given):
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 2
    assert result.output
    assert not set("\x1b\x9b\x07") & set(result.output)


def test_an_error_shows_control_characters_as_text():
    assert str(ExhumeError("a\x1bb\nc\u202ed\udcffe")) == r"a\u001bb\u000ac\u202ed\udcffe"
    assert str(ExhumeError("größer – 名前\tok")) == "größer – 名前\tok"
