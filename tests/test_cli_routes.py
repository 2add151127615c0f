"""``hpfun routes``, and ``hpfun explain`` of saved banks: what is printed, where, and with which exit status."""

import json

import pytest

from hpfun import (
    PackedSequence,
    SequenceReport,
    bank_route,
    compression_halo_plan,
    csa_tnd_plan,
    document_compression_plan,
    document_prefix_plan,
    explain,
    from_json,
    indexer_segments,
    indexer_task_plan,
    plan_route,
    sequence_report,
    sliding_window_plan,
    to_json,
)
from hpfun.workloads import workload
from tests.test_cli import run
from tests.test_inputs import BAD

WORKED = (0, 5, 8, 16)


@pytest.fixture(autouse=True)
def width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def batch(tmp_path):
    path = tmp_path / "batch.json"
    path.write_text("[5, 3, 8]")
    return str(path)


def worked_plans(size, window, ratio, overlap):
    local = 16 // size
    return {
        "window": sliding_window_plan(WORKED, local, size, window),
        "prefix": document_prefix_plan(WORKED, local, size, ratio),
        "halo": compression_halo_plan(WORKED, ratio, local, size, overlap),
    }


def check_rows(rows, sizes, window, ratio, overlap, weights):
    assert [(row["ranks"], row["route"]) for row in rows] == [(size, name) for size in sizes for name in weights]
    for row in rows:
        plan = worked_plans(row["ranks"], window, ratio, overlap)[row["route"]]
        report = sequence_report(plan, weights[row["route"]])
        for name in ("moved_rows", "moved_bytes", "all_gather_bytes", "ring_bytes", "max_bank_rows"):
            assert row[name] == getattr(report, name)
        assert row["share_of_all_gather"] == report.share_of_all_gather
        assert row["share_of_ring"] == report.share_of_ring
        assert row["max_senders"] == report.senders.max()
        assert row["max_peers"] == report.peers.max()
        assert row["rows"] == report.total_rows


@pytest.mark.rule("SEQ-12")
def test_routes_have_the_figures_of_the_reports(capsys, batch):
    options = ["--ranks", "2,4", "--window", "6", "--ratio", "2", "--overlap", "--bytes-per-row", "100"]
    out, err = run(capsys, "routes", batch, *options, "--key-bytes", "7", "--json")
    found = json.loads(out)
    assert err == ""
    assert {name: found[name] for name in ("tokens", "documents", "window", "ratio", "overlap")} == {
        "tokens": 16,
        "documents": 3,
        "window": 6,
        "ratio": 2,
        "overlap": True,
    }
    check_rows(found["routes"], (2, 4), 6, 2, True, {"window": 100, "prefix": 7, "halo": 100})


@pytest.mark.rule("SEQ-12")
def test_keys_weigh_as_much_as_rows_unless_said_and_nothing_by_default(capsys, batch):
    out, _ = run(capsys, "routes", batch, "--ranks", "4", "--bytes-per-row", "100", "--json")
    check_rows(json.loads(out)["routes"], (4,), 128, 4, False, dict.fromkeys(("window", "prefix", "halo"), 100))
    out, _ = run(capsys, "routes", batch, "--ranks", "4", "--json")
    check_rows(json.loads(out)["routes"], (4,), 128, 4, False, dict.fromkeys(("window", "prefix", "halo"), 0))


@pytest.mark.parametrize("options", [[], ["--bytes-per-row", "1_152", "--overlap", "--ratio", "1"]])
@pytest.mark.parametrize("ranks", ["8", "1,32,16384", "1048576"])
def test_the_table_fits_into_80_columns(options, ranks, capsys):
    out, _ = run(capsys, "routes", "published", "--tokens", "1048576", "--ranks", ranks, *options)
    assert max(map(len, out.splitlines())) <= 80
    assert "\u2026" not in out  # nothing was cut
    assert out.count("window") == out.count("prefix") - 1 == out.count("halo") == len(ranks.split(","))


def test_the_table_shows_the_shares(capsys, batch):
    out, _ = run(capsys, "routes", batch, "--ranks", "4", "--window", "6", "--ratio", "2", "--bytes-per-row", "100")
    window = next(line.split() for line in out.splitlines() if "window" in line)
    assert window == ["4", "window", "8", "800", "4.8k", "2.4k", "16.67%", "33.33%", "8", "1"]
    assert "Window 6, ratio 2" in out


@pytest.mark.rule("SEQ-13")
def test_one_rank_is_explained_in_words_or_as_routes(capsys, batch):
    options = ["--ranks", "2,4", "--window", "6", "--ratio", "2", "--rank", "1"]
    expected = [
        (size, name, bank_route(plan, 1)) for size in (2, 4) for name, plan in worked_plans(size, 6, 2, False).items()
    ]
    out, _ = run(capsys, "routes", batch, *options)
    assert out == "\n\n".join(f"{name}: {explain(route)}" for _, name, route in expected) + "\n"
    rows = json.loads(run(capsys, "routes", batch, *options, "--json")[0])["routes"]
    assert [(row["ranks"], row["route"], from_json(json.dumps(row["value"]))) for row in rows] == expected


def test_a_picture_is_drawn_for_each_group(capsys, batch, tmp_path):
    path = tmp_path / "banks.png"
    _, err = run(capsys, "routes", batch, "--ranks", "2,4", "--window", "6", "--picture", str(path), "--json")
    for size in (2, 4):
        assert (tmp_path / f"banks-{size}.png").read_bytes().startswith(b"\x89PNG")
        assert f"banks-{size}.png" in err


def test_input_options_are_those_of_the_other_commands(capsys, batch):
    out, err = run(capsys, "routes", batch, "--ranks", "3", "--fit", "--json")
    assert json.loads(out)["tokens"] == 15
    assert "15 of 16" in err
    out, _ = run(capsys, "routes", "published", "--tokens", "4096", "--seed", "7", "--cap", "100", "--json")
    assert json.loads(out)["documents"] == workload("published", 4096, 7, 100).documents.num_documents


@pytest.mark.parametrize("name", BAD)
def test_bad_files_exit_with_2_and_say_their_code(name, capsys, tmp_path):
    content, code = BAD[name]
    path = tmp_path / "batch.txt"
    path.write_bytes(content)
    out, err = run(capsys, "routes", str(path), "--ranks", "1", status=2)
    assert out == ""
    assert err.startswith(f"[{code}] at `batch.txt")


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--window", "0"), "HP-ROUTE-001"),
        (("--bytes-per-row", "-1"), "HP-ROUTE-001"),
        (("--key-bytes", "-1"), "HP-ROUTE-001"),
        (("--rank", "8"), "HP-ROUTE-002"),
        (("--rank", "-1"), "HP-ROUTE-002"),
        (("--ratio", "0"), "HP-COMPRESS-001"),
        (("--ranks", "3"), "HP-INDEX-002"),
        (("--ranks", "none"), "HP-INDEX-002"),
        (("--tokens", "17"), "HP-INPUT-003"),
        (("--picture", "banks.bmp"), "HP-INPUT-002"),
    ],
)
def test_refused_options_exit_with_2_and_say_their_code(options, code, capsys, batch):
    out, err = run(capsys, "routes", batch, *options, status=2)
    assert out == ""
    assert err.startswith(f"[{code}]")
    out, err = run(capsys, "routes", batch, *options, "--json", status=2)
    assert err == ""
    assert json.loads(out)["error"]["code"] == code


def test_help_names_the_command_and_its_options(capsys):
    assert "routes" in run(capsys, "--help")[0]
    out, _ = run(capsys, "routes", "--help")
    options = ("ranks", "window", "ratio", "overlap", "bytes-per-row", "key-bytes", "rank", "picture", "json", "fit")
    assert all(f"--{name}" in out for name in options)
    assert max(map(len, out.splitlines())) <= 80


SEGMENTS = indexer_segments(WORKED, 4, 8, 2)
SAVED = [
    sliding_window_plan(WORKED, 4, 4, 6),
    bank_route(sliding_window_plan(WORKED, 4, 4, 6), 1),
    SequenceReport("window", 100, [4, 4, 4, 4], [0, 4, 0, 4], [0, 1, 0, 1], [1, 0, 1, 0]),
    document_compression_plan(WORKED, 2, 4, 4, 3, overlap=True),
    PackedSequence(WORKED, 4, 8, 16),
    csa_tnd_plan(SEGMENTS, 2),
]


@pytest.mark.rule("SEQ-13")
@pytest.mark.parametrize("value", SAVED, ids=lambda value: type(value).__name__)
def test_a_saved_value_is_explained_as_it_was_made(value, capsys, tmp_path):
    path = tmp_path / "saved.json"
    path.write_text(to_json(value))
    assert run(capsys, "explain", str(path))[0] == explain(value) + "\n"
    out, _ = run(capsys, "explain", str(path), "--json")
    if value is SAVED[0]:
        assert json.loads(out)["routes"][0]["moved_rows"] == value.moved_rows
        assert run(capsys, "explain", str(path), "--rank", "1")[0] == explain(SAVED[1]) + "\n"
        assert from_json(run(capsys, "explain", str(path), "--rank", "1", "--json")[0]) == SAVED[1]
        assert run(capsys, "explain", str(path), "--rank", "4", status=2)[1].startswith("[HP-ROUTE-002]")
    else:
        assert from_json(out) == value
        assert run(capsys, "explain", str(path), "--rank", "1", status=2)[1].startswith("[HP-INPUT-002]")


def test_a_saved_pack_or_task_plan_has_routes(capsys, tmp_path):
    path = tmp_path / "saved.json"
    plan = indexer_task_plan((5, 3, 8), 2, 1, "locality")
    for value in (plan, plan.documents, SAVED[4]):
        path.write_text(to_json(value))
        assert json.loads(run(capsys, "routes", str(path), "--ranks", "4", "--json")[0])["documents"] == 3
    path.write_text(to_json(plan_route(plan, 0)))
    assert run(capsys, "routes", str(path), status=2)[1].startswith("[HP-INPUT-002]")
