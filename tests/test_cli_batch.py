"""``hpfun batch``: what is printed, drawn and written, and with which exit status."""

import json

import pytest

from hpfun import explain, from_json
from hpfun.batch import BatchTopology, batch_figures, batch_view, plan_batch
from hpfun.batch.layouts import LAYOUTS
from tests.test_cli import run
from tests.test_inputs import BAD


@pytest.fixture(autouse=True)
def width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def lengths(tmp_path):
    path = tmp_path / "batch.json"
    path.write_text("[5, 3, 8]")
    return str(path)


@pytest.mark.rule("BATCH-46")
def test_layouts_have_the_figures_of_their_plans(capsys, lengths):
    options = ["--ranks", "2,4", "--tp", "2", "--sequence-parallel", "--alignment", "24"]
    out, err = run(capsys, "batch", lengths, *options, "--json")
    found = json.loads(out)
    assert err == ""
    assert (found["tokens"], found["documents"]) == (16, 3)
    expected = [
        batch_figures(plan_batch((5, 3, 8), BatchTopology(size, 2, True), layout=layout, alignment=24))
        for size in (2, 4)
        for layout in LAYOUTS
    ]
    assert found["plans"] == expected


def test_the_table_shows_the_figures(capsys, lengths):
    out, _ = run(capsys, "batch", lengths, "--ranks", "4")
    contiguous = next(line.split() for line in out.splitlines() if "contiguous" in line)
    assert contiguous == ["4", "contiguous", "0", "(0.00%)", "4", "4", "1.825", "2", "4", "8"]
    zigzag = next(line.split() for line in out.splitlines() if "zigzag" in line)
    assert zigzag == ["zigzag", "8", "(50.00%)", "6", "4", "1.263", "3", "4", "72"]


@pytest.mark.parametrize("ranks", ["8", "1,32,4096"])
@pytest.mark.parametrize("options", [[], ["--tp", "8", "--sequence-parallel"], ["--layout", "zigzag"]], ids=str)
def test_the_table_fits_into_80_columns(capsys, ranks, options):
    out, _ = run(capsys, "batch", "published", "--tokens", "1048573", "--ranks", ranks, *options)
    assert max(map(len, out.splitlines())) <= 80
    assert "\u2026" not in out  # nothing was cut
    assert out.count("zigzag ") == len(ranks.split(","))


def test_one_rank_is_explained_in_words_or_as_views(capsys, lengths):
    views = [batch_view(plan_batch((5, 3, 8), BatchTopology(2), layout=layout), 1) for layout in LAYOUTS]
    out, _ = run(capsys, "batch", lengths, "--ranks", "2", "--rank", "1")
    assert out == "\n\n".join(map(explain, views)) + "\n"
    found = json.loads(run(capsys, "batch", lengths, "--ranks", "2", "--rank", "1", "--json")[0])
    assert [from_json(json.dumps(view)) for view in found["views"]] == views


def test_a_saved_plan_is_explained_as_it_was_made(capsys, lengths, tmp_path):
    saved = tmp_path / "plan.json"
    _, err = run(capsys, "batch", lengths, "--ranks", "2", "--layout", "zigzag", "--out", str(saved), "--json")
    assert str(saved) in err
    plan = plan_batch((5, 3, 8), BatchTopology(2), layout="zigzag")
    assert from_json(saved.read_text()) == plan
    assert run(capsys, "explain", str(saved))[0] == explain(plan) + "\n"
    assert run(capsys, "explain", str(saved), "--rank", "1")[0] == explain(batch_view(plan, 1)) + "\n"
    assert json.loads(run(capsys, "explain", str(saved), "--json")[0])["plans"] == [batch_figures(plan)]
    again = json.loads(run(capsys, "batch", str(saved), "--ranks", "2", "--layout", "zigzag", "--json")[0])
    assert again["plans"] == [batch_figures(plan)]


def test_a_picture_is_drawn_for_each_group(capsys, lengths, tmp_path):
    path = tmp_path / "layouts.png"
    _, err = run(capsys, "batch", lengths, "--ranks", "2,4", "--picture", str(path), "--json")
    for size in (2, 4):
        assert (tmp_path / f"layouts-{size}.png").read_bytes().startswith(b"\x89PNG")
        assert f"layouts-{size}.png" in err


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--ranks", "0"], "HP-INDEX-002"),
        (["--layout", "ring"], "HP-BATCH-004"),
        (["--alignment", "6"], "HP-BATCH-001"),
        (["--tp", "0"], "HP-BATCH-001"),
        (["--capacity", "15"], "HP-BATCH-013"),
        (["--rank", "8"], "HP-ENCODER-004"),
        (["--out", "plan.json"], "HP-INPUT-002"),
        (["--out", "no/folder/plan.json", "--layout", "zigzag"], "HP-INPUT-001"),
        (["--picture", "layouts.gif"], "HP-INPUT-002"),
        (["--picture", "no/folder/layouts.png"], "HP-INPUT-001"),
    ],
    ids=str,
)
def test_bad_options_exit_with_2_and_say_their_code(capsys, lengths, options, code):
    out, err = run(capsys, "batch", lengths, *options, status=2)
    assert out == ""
    assert f"[{code}]" in err


@pytest.mark.parametrize("name", BAD)
def test_bad_files_exit_with_2_and_say_their_code(name, capsys, tmp_path):
    content, code = BAD[name]
    path = tmp_path / "batch.txt"
    path.write_bytes(content)
    out, err = run(capsys, "batch", str(path), "--ranks", "1", status=2)
    assert out == ""
    assert f"[{code}]" in err
