from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc

import pytest
import torch
from planted_data import says

from exhume.core.records import cells_of
from exhume.readers import load, table

PEOPLE = """age,job,income,default
20,clerk,1000,no
60,"cook, chef",3000,yes
40,clerk,2000,no
30,nurse,1500,no
"""


@pytest.fixture
def written(tmp_path):
    def write(text, name="t.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_the_rule(written):
    path = written(PEOPLE)
    records = load(path)
    assert records.classes == ("no", "yes")
    assert records.labels.tolist() == [0, 1, 0, 0]
    want = [[0, 1, 0, 0, 0], [1, 0, 1, 0, 1], [0.5, 1, 0, 0, 0.5], [0.25, 0, 0, 1, 0.25]]
    assert torch.equal(records.inputs, torch.tensor(want))


def test_the_label_by_name_and_back_again(written):
    path = written(PEOPLE)
    assert load(f"{path}:job").classes == ("clerk", "cook, chef", "nurse")
    made = table(path)
    assert cells_of(made.inputs[1], made.columns) == {
        "age": "60",
        "job": "cook, chef",
        "income": "3000",
    }
    guess = torch.tensor([0.1, 0.2, 0.1, 0.6, -0.5])
    assert cells_of(guess, made.columns) == {"age": "24", "job": "nurse", "income": "0"}


def test_other_marks_and_numbered_classes(written):
    records = load(written("\ufeffx;y\n1;10\n1;9\n1;10\n"))
    assert (records.classes, records.labels.tolist()) == (("9", "10"), [1, 0, 1])
    assert records.inputs.tolist() == [[0], [0], [0]]  # a constant column
    assert load(written("a\tb\r\n1\tu\r\n\r\n2\tv\r\n3\tv\r\n")).inputs.tolist() == [
        [0],
        [0.5],
        [1],
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n", "a line of column names and one line a record are needed"),
        ("", "a line of column names and one line a record are needed"),
        ("1,2\n3,4\n", "the first line holds numbers; it must name the columns"),
        ("a,a\n1,2\n", "column names must be there and differ, got a, a"),
        ("a,b\n1,2\n3\n", "row 3 has 1 cells, the header has 2"),
        ("a,b\n1,u\n,u\n", "1 number is missing: in column 'a' (row 3)"),
        ("a,b\n1,u\nnan,u\n", "1 number is missing: in column 'a' (row 3)"),
        ("a,b\n?,u\n1,u\n", "1 number is missing: in column 'a' (row 2)"),
        ("a,b\n1,u\ninf,u\n", "column 'a' is of numbers, but row 3 has 'inf'"),
        ("a,b\n1,u\nx,u\n", "column 'a' is of numbers, but row 3 has the text 'x'"),
        ("a,b\n1,u\n\n\nx,u\n", "column 'a' is of numbers, but row 5 has the text 'x'"),
        ("a,b\n1,u\n2,\n", "label column 'b': row 3 has none"),
        ("a,b\n1,0.5\n2,0.5\n2,1\n", "label column 'b': 0.5 is no class"),
        ("a,b\n1,u\n2,v\n3,w\n", "label column 'b': every record has a class of its own"),
        ("b\nu\nv\n", "the one column 'b' is the label; nothing is left as input"),
        (b"a,b\n\xff,1\n", "not a table in UTF-8"),
        ('a,b\n"1,2\n', "not a table in UTF-8"),
        (
            "a,b\n" + "".join(f"name{i},u\n" for i in range(65)),
            "column 'a' holds more than 64 different texts, the 65th in row 66; leave it out",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence(written, text, message):
    assert message in says(lambda: load(written(text)))


def test_what_cannot_be_asked_for(written):
    path = written(PEOPLE)
    text = says(lambda: load(f"{path}:wage"))
    assert text == f"{path}: no column 'wage'; there are age, job, income, default"
    assert "size: 8 given" in says(lambda: load(path, size=8))
    assert "no such file or folder" in says(lambda: load("gone.csv:wage"))


def test_ten_gigabytes_are_refused_unread(written):
    path = written(PEOPLE)
    os.truncate(path, 10 << 30)  # sparse
    assert "10,737,418,240 bytes, tables up to 536,870,912 are read" in says(lambda: load(path))


def test_a_column_that_changes_its_mind_is_named_at_its_first_text(written):
    text = "a,b\nx,u\ny,u\n3,v\n"
    assert "column 'a' is of numbers, but row 2 has the text 'x'" in says(
        lambda: load(written(text))
    )


def test_blocks_do_not_show(written, monkeypatch):
    rows = "".join(f"{i % 7},{'uvw'[i % 3]},{i % 2}\n" for i in range(50))
    whole = load(written(f"a,b,y\n{rows}"))
    monkeypatch.setattr(sys.modules["exhume.readers.table"], "_CELLS", 12)
    cut = load(written(f"a,b,y\n{rows}"))
    assert torch.equal(whole.inputs, cut.inputs)
    assert torch.equal(whole.labels, cut.labels)
    assert "row 52 has 1 cells" in says(lambda: load(written(f"a,b,y\n{rows}1\n")))


def test_more_inputs_than_the_memory_holds_are_refused_before_they_are_made(written, monkeypatch):
    monkeypatch.setattr("exhume.store.memory.memory_here", lambda: 1e6)
    rows = "".join(f"t{i % 60},{i % 2}\n" for i in range(3000))
    text = says(lambda: load(written(f"a,y\n{rows}")))
    assert "3,000 records of 60 inputs need 1.4 MB of memory, 1.0 MB are free" in text


def test_an_endless_line(written):
    text = says(lambda: load(written("a," * (1 << 22))))
    assert "a line of more than 4,194,304 characters" in text


def test_blocks_are_all_that_is_held_of_the_text(written, monkeypatch):
    """A row of a block takes some 550 bytes as text, and four numbers as Python's objects 100."""
    monkeypatch.setattr(sys.modules["exhume.readers.table"], "_CELLS", 1 << 10)
    rows = 20_000
    path = written("a,b,c,y\n" + "1.25,3.5,2.75,0\n0.25,4.5,7.75,1\n" * (rows // 2))
    tracemalloc.start()
    try:
        load(path)
        assert tracemalloc.get_traced_memory()[1] < 30 * rows
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_a_table_takes_little_more_than_its_inputs(written):
    """A few bytes a cell, and no Python object for each: 10 MB of text."""
    path = written("a,b,c,y\n" + "1.25,3.5,2.75,0\n0.25,4.5,7.75,1\n" * 300_000)
    code = (
        "import resource, sys\n"
        "from exhume.readers.table import table\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "assert len(table(__import__('pathlib').Path(sys.argv[1])).labels) == 600_000\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, check=True)
    assert int(done.stdout) < 60_000  # KiB; 7 MB of inputs, 10 of labels


GAPS = """age,hours,job,member
20,NA,clerk,no
,40,?,yes
60,30,clerk,no
NaN,,cook,yes
"""


def test_missing_numbers_are_said_by_column_and_row(written):
    text = says(lambda: load(written(GAPS)))
    assert "4 numbers are missing: in column 'age' (rows 3, 5), 'hours' (rows 2, 5);" in text
    many = "a,y\n" + "".join(f"{i if i % 2 else ''},{i % 2}\n" for i in range(40))
    assert "(rows 2, 4, 6, 8, 10 and 15 more)" in says(lambda: load(written(many)))


def test_missing_numbers_become_the_mean_only_if_asked(written):
    path = written(GAPS)
    records = load(path, missing="mean")
    assert [column.filled for column in records.columns] == [2, 2, 0]
    assert records.inputs[:, 0].tolist() == [0, 0.5, 1, 0.5]  # ages from 20 to 60, their mean 40
    assert records.inputs[:, 1].tolist() == [0.5, 1, 0, 0.5]
    assert records.columns[2].texts == ("?", "clerk", "cook")  # not known is an answer like others
    assert "missing: given, but mnist is no table" in says(lambda: load("mnist", missing="mean"))


def test_a_table_without_gaps_is_the_same_with_and_without_the_mean(written, monkeypatch):
    path = written(PEOPLE)
    assert torch.equal(load(path, missing="mean").inputs, load(path).inputs)
    monkeypatch.setattr(sys.modules["exhume.readers.table"], "_CELLS", 5)
    cut = load(written(GAPS), missing="mean")
    assert torch.equal(cut.inputs[:, 1], torch.tensor([0.5, 1, 0, 0.5]))


def test_a_column_of_nothing_but_gaps(written):
    assert load(written("a,b,y\n,1,u\n,2,v\n,3,u\n")).columns[0].texts == ("",)
