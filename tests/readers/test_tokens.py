"""Texts and token numbers as records: every format, and every way in which they can be wrong."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from planted_data import says

from exhume.core.contract import Vocabulary
from exhume.readers import TextReading, load

WORDS = ["<pad>", "<unk>", "the", "cat", "sat", "."]


@pytest.fixture
def vocabulary(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(WORDS) + "\n")
    return str(path)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_text_file_with_labels_and_a_vocabulary(tmp_path, vocabulary):
    path = write(tmp_path / "r.txt", "The cat sat.\tgood\r\nthe dog\tbad\n\n")
    records = load(path, reading=TextReading(vocabulary))
    assert records.inputs.tolist() == [[2, 3, 4, 5], [2, 1, 0, 0]]
    assert records.inputs.dtype == torch.int64
    assert (records.labels.tolist(), records.classes) == ([1, 0], ("bad", "good"))
    assert records.vocabulary == Vocabulary(tuple(WORDS), 0)
    assert records[1:].vocabulary == records.vocabulary
    assert records.to(torch.device("cpu")).vocabulary == records.vocabulary
    longer = load(path, reading=TextReading(vocabulary, length=6))
    assert longer.inputs.tolist() == [[2, 3, 4, 5, 0, 0], [2, 1, 0, 0, 0, 0]]


def test_words_are_numbered_by_how_often_they_occur(tmp_path):
    records = load(write(tmp_path / "r.txt", "b a\na a c\n"))
    assert records.vocabulary == Vocabulary(("<padding>", "a", "b", "c"), 0, given=False)
    assert records.inputs.tolist() == [[2, 1, 0], [1, 1, 3]]
    assert records.classes == ("text",)


def test_a_folder_of_texts(tmp_path, vocabulary):
    for name, text in (("pos/2", "cat sat"), ("pos/10", "cat"), ("neg/1", "the cat .")):
        write(tmp_path / "texts" / f"{name}.txt", text)
    records = load(tmp_path / "texts", reading=TextReading(vocabulary))
    assert records.inputs.tolist() == [[2, 3, 5], [3, 4, 0], [3, 0, 0]]
    assert (records.labels.tolist(), records.classes) == ([0, 1, 1], ("neg", "pos"))
    write(tmp_path / "texts" / "loose.txt", "cat")
    assert "holds both texts (loose.txt) and folders (neg)" in says(
        lambda: load(tmp_path / "texts", reading=TextReading(vocabulary))
    )


def test_tokens_in_an_npz_file(tmp_path):
    np.savez(tmp_path / "t.npz", tokens=np.array([[5, 1], [2, 2]]), y=[0, 1])
    records = load(tmp_path / "t.npz")
    assert records.inputs.tolist() == [[5, 1], [2, 2]]
    assert records.vocabulary == Vocabulary()
    np.savez(tmp_path / "x.npz", x=np.array([[5, 1], [2, 2]]), y=[0, 1])
    assert load(tmp_path / "x.npz").vocabulary is None  # whole numbers in a table stay numbers
    assert load(tmp_path / "x.npz").inputs.dtype == torch.float32


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"[PAD]": 0, "a": 1, "b": 3}, ("[PAD]", "a", "<2>", "b")),
        (["<pad>", "a"], ("<pad>", "a")),
        ({"model": {"vocab": {"<pad>": 0, "a": 1}}, "version": "1.0"}, ("<pad>", "a")),
    ],
)
def test_vocabularies_in_json(tmp_path, content, words):
    path = write(tmp_path / "v.json", json.dumps(content))
    records = load(write(tmp_path / "r.txt", "a a\na\n"), reading=TextReading(str(path)))
    assert records.vocabulary == Vocabulary(words, 0)
    assert records.inputs.tolist() == [[1, 1], [1, 0]]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("v.txt", "", "v.txt is empty"),
        ("v.json", "{}", "v.json is empty"),
        ("v.json", "{", "v.json: not readable as JSON"),
        ("v.json", "[1, 2]", "holds no words; legal are one word a line"),
        ("v.json", '{"a": 1.5}', "holds no words; legal are"),
        ("v.json", '{"a": -1}', "has the numbers -1 to -1; legal are 0 to 4999999"),
        ("v.json", '{"a": 1, "b": 1}', "gives one number to two words"),
        ("v.txt", "a\nb\na\n", "has the word 'a' twice"),
        ("v.txt", "a\n", "record 0 has the word 'b', which the vocabulary lacks; nor has it <unk>"),
        ("v.txt", "a\nb\n", "record 1 has 1 tokens, the longest has 2; say with padding"),
    ],
)
def test_vocabularies_that_do_not_fit(tmp_path, name, content, message):
    text = write(tmp_path / "r.txt", "a b\na\n")
    path = write(tmp_path / name, content)
    assert message in says(lambda: load(text, reading=TextReading(str(path))))


def test_a_vocabulary_that_is_not_there(tmp_path):
    text = write(tmp_path / "r.txt", "a\n")
    assert "cannot be read" in says(
        lambda: load(text, reading=TextReading(str(tmp_path / "no.txt")))
    )


@pytest.mark.parametrize(
    ("arrays", "reading", "message"),
    [
        ({"tokens": [[0.5, 1.0]]}, {}, "record 0 is of float64; tokens are whole numbers"),
        ({"tokens": [[[1]]]}, {}, "record 0 is no sequence; tokens are whole numbers"),
        ({"tokens": [[1, -2]]}, {}, "record 0 has the token -2; the vocabulary goes from 0"),
        ({"tokens": [[1, 2]]}, {"length": 3}, "record 0 has 2 tokens, 3 are asked for"),
        ({"tokens": [[1, 2]]}, {"padding": 1 << 30}, "padding: 1073741824 given"),
        ({"x": [[1.0, 2.0]]}, {"length": 3}, "holds no texts and no tokens"),
    ],
)
def test_tokens_that_are_none(tmp_path, arrays, reading, message):
    np.savez(tmp_path / "t.npz", **arrays, y=[0])
    assert message in says(lambda: load(tmp_path / "t.npz", reading=TextReading(**reading)))


def test_tokens_beyond_the_vocabulary(tmp_path, vocabulary):
    np.savez(tmp_path / "t.npz", tokens=[[1, 2], [6, 0]], y=[0, 1])
    told = says(lambda: load(tmp_path / "t.npz", reading=TextReading(vocabulary)))
    assert "record 1 has the token 6; the vocabulary goes from 0 to 5" in told


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n \n", "holds no text"),
        ("a\tgood\nb\n", "some texts have a tab and a label and some have not, first text 2"),
    ],
)
def test_texts_that_cannot_be_read(tmp_path, text, message):
    assert message in says(lambda: load(write(tmp_path / "r.txt", text)))


def test_other_bad_readings(tmp_path):
    path = write(tmp_path / "r.txt", "a\n")
    assert "at least 0 and -1 are needed, got -1 and -1" in says(lambda: TextReading(length=-1))
    assert "padding: 3 given without a vocabulary" in says(
        lambda: load(path, reading=TextReading(padding=3))
    )
    path.write_bytes(b"\xff\xfe")
    assert "not a text file in UTF-8" in says(lambda: load(path))
    path.write_text("\t good")
    assert "every record is empty" in says(lambda: load(path))
