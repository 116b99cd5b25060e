"""Hostile files, each made from its kind and its number alone, and the command that is given it.

A kind is a function from a source of chance and an empty folder to the arguments of `exhume`.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import random
import struct
import zipfile
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fuzzing import scrambled
from PIL import Image
from safetensors.torch import save

EVIL_NAMES = ("a\x1b[2Jb", "c\nd", "e\x9bf", "g\u202eh", "[red]", "ü" * 80, "\udcff", "-x", "..x")
STATE = {"1.weight": torch.ones(5, 16), "1.bias": torch.ones(5), "3.weight": torch.ones(3, 5)}
JSON_VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 10**18, 1.5, 1e308, "", "x", "../x", "a\0b", "\x1b[2J", [], {}, [[]]),
    *([0], ["a"], {"a": 1}, "9" * 5000, ["x"] * 3, -(10**30), "nan", 10**400),
)


def deep(chance: random.Random) -> str:
    opening = chance.choice(("[", '{"a":', "[[", '{"_data_files":['))
    return opening * chance.choice((10, 900, 5000, 100_000))


def mutated_json(content: Any, chance: random.Random) -> str:
    """Values replaced, lost or renamed anywhere in it; or text that is no JSON."""
    if chance.random() < 0.15:
        return deep(chance)
    copy = json.loads(json.dumps(content))
    for _ in range(chance.choice((1, 1, 2, 4))):
        place = copy
        for _ in range(chance.randrange(1, 7)):
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = chance.choice(keys)
            inner = place[key]
            if not isinstance(inner, dict | list) or not inner or chance.random() < 0.25:
                action = chance.randrange(4)
                if action == 0:
                    del place[key]
                elif action == 1 and isinstance(place, dict):
                    place[f"{key}s"] = place.pop(key)
                else:
                    place[key] = deepcopy(chance.choice(JSON_VALUES))
                break
            place = inner
    text = json.dumps(copy)
    if chance.random() < 0.2:
        text = scrambled(text.encode(), chance).decode("utf-8", "replace")
    return text.replace('"9999', "9999", 1) if chance.random() < 0.1 else text


def tensors(chance: random.Random) -> dict[str, Any]:
    odd: list[Callable[[], Any]] = [
        lambda: torch.zeros(1).expand(10**5, 10**6),
        lambda: torch.zeros(64).as_strided((10**9, 4), (0, 1)),
        lambda: torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1), (10**9,)),
        lambda: torch.eye(4).to_sparse_csr(),
        lambda: torch.zeros(10**12, device="meta"),
        lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
        lambda: torch.quantize_per_tensor(torch.zeros(5), 0.1, 0, torch.qint8),
        lambda: torch.zeros(5).to(torch.float8_e5m2),
        lambda: torch.zeros(5).to(torch.uint16),
        lambda: torch.zeros(5, dtype=torch.complex64),
        lambda: torch.full((5,), torch.nan),
        lambda: torch.zeros(0, 16),
        lambda: torch.zeros(()),
        lambda: [torch.zeros(5)] * 3,
        lambda: {"a": {"b": torch.zeros(2)}},
        lambda: "9" * 10_000,
    ]
    state: dict[Any, Any] = dict(STATE)
    for name in chance.sample(list(STATE), chance.randrange(1, 3)):
        spelt = name if chance.random() < 0.7 else chance.choice((*EVIL_NAMES, 7, "module." + name))
        state[spelt] = chance.choice(odd)()
    if chance.random() < 0.1:
        view = torch.zeros(1000, 1000)
        state |= {f"w{i}": view for i in range(4000)}
    return state if chance.random() < 0.8 else {"state_dict": state, "epoch": 10**30}


def weights(path: Path) -> list[str]:
    return ["audit-weights", str(path), "--shape", "1,4,4", "--dry-run"]


def records(path: Path) -> list[str]:
    return ["audit", "--data", str(path), "--dry-run"]


def pt(chance: random.Random, folder: Path) -> list[str]:
    path = folder / "net.pt"
    kind = chance.randrange(6)
    if kind == 0:  # the format of before 1.6, which promises any number of bytes
        torch.save(tensors(chance), path, _use_new_zipfile_serialization=False)
        path.write_bytes(scrambled(path.read_bytes(), chance))
    elif kind == 1:
        path.write_bytes(pickle.dumps(chance.choice((os.system, 10**500, [[]] * 9))))
    elif kind == 2:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("net/data.pkl", b"\x80\x02" + b"(" * 10**6)
            archive.writestr("net/data/0", bytes(chance.choice((0, 1 << 10, 1 << 24))))
            archive.writestr("net/version", chance.choice((b"3", b"99", b"")))
    else:
        torch.save(tensors(chance), path)
        if kind == 3:
            path.write_bytes(scrambled(path.read_bytes(), chance))
    return weights(path)


def safetensors(chance: random.Random, folder: Path) -> list[str]:
    path = folder / "net.safetensors"
    whole = save(STATE)
    size = struct.unpack("<Q", whole[:8])[0]
    header = json.loads(whole[8 : 8 + size])
    kinds = ("F4", "F6_E2M3", "F8_E8M0", "F8_E4M3", "U64", "C64", "BF16", "I16", "BOOL", "X", "")
    for name in chance.sample(list(header), chance.randrange(0, 3)):
        header[name]["dtype"] = chance.choice(kinds)
    text = json.dumps(header) if chance.random() < 0.4 else mutated_json(header, chance)
    length = (
        len(text.encode()) if chance.random() < 0.8 else chance.choice((0, 3, 2**40, 2**64 - 1))
    )
    content = struct.pack("<Q", length) + text.encode() + whole[8 + size :]
    path.write_bytes(content if chance.random() < 0.7 else scrambled(content, chance))
    return weights(path)


def npy_bytes(chance: random.Random, *, shape: str | None = None) -> bytes:
    kinds = ("<f4", "<f8", "|u1", "<i8", "|O", "<U5", "<c8", "|b1", "<M8[s]", "|V8", "<f2", ">i4")
    shapes = ("(60, 16)", "(60,)", "(10000000000,)", "(-1,)", "(0,)", "()", "(2, 2, 2)", "(60, 1)")
    about = {
        "descr": chance.choice(kinds),
        "fortran_order": chance.random() < 0.1,
        "shape": "SHAPE",
    }
    text = repr(about).replace("'SHAPE'", shape or chance.choice(shapes))
    if chance.random() < 0.15:
        text = chance.choice(("(" * 3000, "{" * 300, text[:-5], "1" * 9000, "[1]*10**9"))
    body = text.encode() + b"\n"
    content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(body) % 65536) + body
    return content + bytes(chance.choice((0, 60, 480, 7680)))


def npz(chance: random.Random, folder: Path) -> list[str]:
    path = folder / "data.npz"
    x, y = np.random.default_rng(0).random((60, 16), dtype=np.float32), np.arange(60) % 3
    kind = chance.randrange(5)
    if kind == 0:
        np.savez_compressed(path, x=x, y=y)
        path.write_bytes(scrambled(path.read_bytes(), chance))
    elif kind == 1:
        odd: tuple[Any, ...] = (
            np.array([object()] * 60),
            y * np.nan,
            y - 5,
            y * 10**9,
            y.astype(str),
            x,
            y.astype(bool),
            np.zeros((60, 0)),
            np.array(3),
            y[:7],
            y + 0.5,
        )
        np.savez(path, x=chance.choice((x, x * np.inf, *odd)), y=chance.choice((y, *odd)))
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("x.npy", npy_bytes(chance))
            archive.writestr("y.npy", npy_bytes(chance))
            if chance.random() < 0.3:
                archive.writestr(chance.choice(("classes.npy", "../z.npy", "x.npy")), b"odd")
    return records(path)


def npy(chance: random.Random, folder: Path) -> list[str]:
    (folder / "net.safetensors").write_bytes(save(STATE))
    (folder / "rows.npy").write_bytes(npy_bytes(chance))
    more = ["--trained-on", "digits", "--rows", str(folder / "rows.npy")]
    return [*weights(folder / "net.safetensors"), *more]


def skops(chance: random.Random, folder: Path) -> list[str]:
    from sklearn.linear_model import LogisticRegression
    from skops import io as skops_io

    x, y = np.random.default_rng(0).random((60, 4)), np.arange(60) % 2
    np.savez(folder / "data.npz", x=x, y=y)
    model = LogisticRegression().fit(x, y)
    odd: tuple[Any, ...] = (
        *(np.full((1, 4), np.nan), np.zeros(4), np.zeros((0, 4)), np.zeros((3, 4)), "x", None),
        *(0.0, np.zeros(1), np.zeros(7), np.array([np.inf]), [[1.0, 2.0, 3.0, 4.0]], -1, 1e400),
        *(np.array(["a"] * 4)[None], {"a": 1}, np.zeros((1, 10**6)), (), True),
    )
    names = ("coef_", "intercept_", "C", "tol", "classes_", "penalty", "fit_intercept", "solver")
    for name in chance.sample(names, chance.randrange(0, 3)):
        setattr(model, name, chance.choice(odd))
    skops_io.dump(model, folder / "model.skops")
    path = folder / "model.skops"
    if chance.random() < 0.5:
        members = {}
        with zipfile.ZipFile(path) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        schema = json.loads(members["schema.json"])
        members["schema.json"] = mutated_json(schema, chance).encode()
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
    elif chance.random() < 0.4:
        path.write_bytes(scrambled(path.read_bytes(), chance))
    brief = folder / "audit.toml"
    brief.write_text(
        f'[data]\nsource = "{folder}/data.npz"\n[victim]\nreleased = false\n[fitted]\nfile = "{path}"\n'
    )
    return ["audit", str(brief), "--dry-run"]


def csv(chance: random.Random, folder: Path) -> list[str]:
    cells = (
        *("1", "2.5", "-1.7e308", "1.7e308", "1e400", "nan", "", "x", '"', '"a\nb"', "\0", "1_0"),
        *("9" * 5000, "z" * 200_000, "\x1b[2J", "ü", "0x10", "١", " 3 ", "'", "inf", "-0"),
    )
    width = chance.choice((1, 2, 3, 3, 3, 50, 5000))
    usual = chance.random() < 0.6
    lines = [",".join(f"c{i}" if chance.random() < 0.99 else "c0" for i in range(width))]
    for row in range(chance.choice((0, 1, 30, 60))):
        size = width if chance.random() < 0.99 else width + 1
        plain = [str((row * 7 + i) % 5) for i in range(size)]
        for _ in range(0 if usual and row != 3 else 1):
            plain[chance.randrange(size)] = chance.choice(cells)
        lines.append(",".join(plain))
    text = chance.choice(("\n", "\r\n", "\n", "\r")).join(lines).encode("utf-8", "surrogateescape")
    if chance.random() < 0.2:
        text = scrambled(text, chance)
    (folder / "t.csv").write_bytes(text)
    label = chance.choice(("", "", ":c0", ":none", ":\x1b[2J"))
    return ["audit", "--data", f"{folder}/t.csv{label}", "--dry-run"]


def idx(chance: random.Random, folder: Path) -> list[str]:
    def part(magic: int, shape: list[int], body: int) -> bytes:
        header = struct.pack(f">I{len(shape)}I", magic, *(size % 2**32 for size in shape))
        return header + bytes(body)

    many = chance.choice((60, 60, 0, 2**32 - 1, 2**31))
    side = chance.choice((4, 4, 0, 65_535))
    images = part(chance.choice((0x803, 0x803, 0x801, 0, 0x80D03)), [many, side, side], 960)
    labels = part(chance.choice((0x801, 0x801, 0x803)), [many], chance.choice((60, 60, 0, 7)))
    for name, content in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels)):
        plain = content if chance.random() < 0.7 else scrambled(content, chance)
        if chance.random() < 0.5:
            packed = gzip.compress(plain + bytes(chance.choice((0, 0, 1 << 27))))
            packed = packed if chance.random() < 0.7 else scrambled(packed, chance)
            (folder / f"train-{name}.gz").write_bytes(packed)
        else:
            (folder / f"train-{name}").write_bytes(plain)
    return records(folder)


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\n(x) print\n%%EOF\n"


def picture(chance: random.Random) -> bytes:
    buffer = io.BytesIO()
    kind = chance.choice(("png", "png", "jpeg", "gif", "tiff", "bmp", "ppm", "webp", "ico"))
    mode = chance.choice(("L", "L", "RGB", "P", "1", "RGBA"))
    mode = "RGB" if kind in ("jpeg", "webp") and mode in ("P", "RGBA", "1") else mode
    Image.new("L" if kind == "ppm" else mode, (4, 4)).save(buffer, format=kind)
    content = buffer.getvalue()
    odd = chance.randrange(8)
    if odd == 0:
        return POSTSCRIPT
    if odd == 1 and kind == "png":  # 40,000 x 40,000 pixels
        return content[:16] + struct.pack(">II", 40_000, 40_000) + content[24:]
    if odd == 2:
        return b"P5 60000 60000 255\n"
    return content if odd > 4 else scrambled(content, chance)


def folders(chance: random.Random, folder: Path) -> list[str]:
    """Images beside each other or by class; names that a terminal would obey."""
    place = folder / "data"
    for index in range(30):
        kind = chance.choice(EVIL_NAMES) if chance.random() < 0.05 else f"class{index % 2}"
        (place / kind).mkdir(parents=True, exist_ok=True)
        name = f"{index}.png" if chance.random() < 0.9 else f"{chance.choice(EVIL_NAMES)}.jpg"
        sound = io.BytesIO()
        Image.new("L", (4, 4), index).save(sound, format="png")
        content = picture(chance) if chance.random() < 0.15 else sound.getvalue()
        (place / kind / name).write_bytes(content)
    if chance.random() < 0.2:
        (place / chance.choice(EVIL_NAMES)).mkdir(exist_ok=True)
    if chance.random() < 0.1:
        (place / "class0" / "zero.png").symlink_to("/dev/zero")
    return records(place)


def hub(chance: random.Random, folder: Path) -> list[str]:
    import pyarrow

    rows = {
        "x": pyarrow.array(np.random.default_rng(0).random(60, dtype=np.float32)),
        "y": pyarrow.array(np.arange(60) % 3),
    }
    odd = (
        pyarrow.nulls(60),
        pyarrow.array(["a"] * 60),
        pyarrow.array([[1.0, 2.0]] * 59 + [[1.0]]),
        pyarrow.array([b"x"] * 60),
        pyarrow.array([None, *range(59)]),
        pyarrow.array([{"bytes": POSTSCRIPT}] * 60),
        pyarrow.array([2**62] * 60),
        pyarrow.array([-1] * 60),
        pyarrow.array([float("nan")] * 60),
    )
    if chance.random() < 0.5:
        rows[chance.choice("xy")] = chance.choice(odd)
    table = pyarrow.table(rows)
    if chance.random() < 0.1:
        table = pyarrow.table({"x": pyarrow.nulls(1 << 26), "y": pyarrow.nulls(1 << 26)})
    sink = io.BytesIO()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    content = sink.getvalue()
    part = folder / "saved" / "train"
    part.mkdir(parents=True)
    (part / "data.arrow").write_bytes(
        content if chance.random() < 0.6 else scrambled(content, chance)
    )
    kind = chance.choice(("Value", "Value", "Image", "ClassLabel", "Sequence", 7))
    about = {
        "features": {
            "x": {"_type": kind, "dtype": chance.choice(("float32", "string", None))},
            "y": {"_type": chance.choice(("Value", "ClassLabel")), "dtype": "int64"},
        }
    }
    if chance.random() < 0.3:
        about["features"]["y"]["names"] = chance.choice(
            (["a", "b", "c"], ["\x1b[2J"] * 3, "abc", 3)
        )
    state = {"_data_files": [{"filename": "data.arrow"}], "_split": "train"}
    splits = {"splits": ["train"]}
    names = ("../other", "/etc", "a\0b", "x" * 5000, "..", "\x1b[2J")
    if chance.random() < 0.3:
        splits = {"splits": [chance.choice(names)]}
    contents = {"dataset_info.json": about, "state.json": state, "../dataset_dict.json": splits}
    spoilt = chance.choice(list(contents))
    for name, plain in contents.items():
        text = mutated_json(plain, chance) if name == spoilt else json.dumps(plain)
        (part / name).write_text(text, encoding="utf-8", errors="replace")
    return records(folder / "saved")


SOUND_BRIEF = (
    'seed = 0\n[data]\nsource = "digits"\nfixed = 20\ntargets = 5\nshadows = 30\n'
    '[victim]\nhidden = [4]\nsteps = 5\nactivation = "elu"\n[budget]\ntime = "10m"\n'
)


def toml(chance: random.Random, folder: Path) -> list[str]:
    path = folder / chance.choice(("audit.toml", "audit.toml", *EVIL_NAMES))
    values = (
        *("[" * 5000, "{a=" * 3000, "1" * 5000, "1" * 300, "100000000000", "-1", "nan", "1e999"),
        *(
            '"a\\u0000b"',
            '"\\u001b[2J"',
            "1979-05-27",
            "true",
            "[]",
            "[[]]",
            "{}",
            "0x" + "f" * 4000,
        ),
        *("'" + "x" * 100_000 + "'", "[" + "1," * 20_000 + "]", "[1, 'a']", "00:00:01"),
    )
    lines = SOUND_BRIEF.splitlines()
    for _ in range(chance.choice((1, 1, 3))):
        place = chance.randrange(len(lines))
        name = lines[place].partition(" = ")[0]
        lines[place] = f"{name} = {chance.choice(values)}"
    text = "\n".join(lines).encode()
    path.write_bytes(text if chance.random() < 0.7 else scrambled(text, chance))
    return ["audit", str(path), "--dry-run"]


def recordings(chance: random.Random, folder: Path) -> list[str]:
    """A folder of recorded updates, and an adapter with its configuration."""
    (folder / "net.py").write_text(
        "from torch import nn\n"
        "def net():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 3))\n"
    )
    state = {**STATE, "3.bias": torch.ones(3)}
    for name in ("before.safetensors", "after.safetensors"):
        (folder / name).write_bytes(save({n: t * len(name) for n, t in state.items()}))
    about = {
        "schema": 1,
        "round": 1,
        "client": "a",
        "before": "before.safetensors",
        "after": "after.safetensors",
        "rate": 0.1,
        "steps": 1,
        "batch_size": 4,
    }
    (folder / "round-1-client-a.json").write_text(mutated_json(about, chance), errors="replace")
    np.savez(folder / "data.npz", x=np.zeros((60, 1, 4, 4), np.float32), y=np.arange(60) % 3)
    given = ["--model", f"{folder}/net.py:net", "--data", f"{folder}/data.npz", "--records", "0-3"]
    return ["audit-update", str(folder), *given, "--dry-run"]


KINDS = {
    made.__name__: made
    for made in (pt, safetensors, npz, npy, skops, csv, idx, folders, hub, toml, recordings)
}
