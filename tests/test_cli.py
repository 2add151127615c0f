"""The command line: what it prints, where, and with which exit status."""

import io
import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpfun import (
    IndexerMode,
    PackedDocuments,
    cli_indexer,
    explain,
    from_json,
    indexer_plan_report,
    indexer_task_plan,
    makespan_lower_bound,
    moved_rows_lower_bound,
    plan_route,
)
from hpfun.cli import main
from hpfun.comparison import tasks_at_most
from hpfun.workloads import workload
from tests.test_inputs import BAD, FORMS


@pytest.fixture(autouse=True)
def width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def batch(tmp_path):
    path = tmp_path / "batch.json"
    path.write_text("[5, 3, 8]")
    return str(path)


def run(capsys, *arguments: str, status: int = 0) -> tuple[str, str]:
    assert main([*arguments]) == status
    return capsys.readouterr()


def test_plan_prints_what_explain_says(capsys, batch):
    out, err = run(capsys, "plan", batch, "--ranks", "2")
    assert out == explain(indexer_task_plan((5, 3, 8), 2, 1, "locality")) + "\n"
    assert err == ""


def test_plan_passes_every_option_on(capsys, batch):
    options = ["--ranks", "4", "--ratio", "2", "--row-cost", "3", "--block-size", "2", "--capacity", "6"]
    out, _ = run(capsys, "plan", batch, "--mode", "hybrid", "--zigzag-min-length", "6", *options, "--json")
    assert from_json(out) == indexer_task_plan((5, 3, 8), 4, 2, "hybrid", 2, 6, 6, row_cost=3)
    options = ["--ranks", "4", "--tolerance-ppm", "1_000", "--ranks-per-node", "2"]
    out, _ = run(capsys, "plan", batch, *options, "--json")
    assert from_json(out) == indexer_task_plan((5, 3, 8), 4, 1, "locality", tolerance_ppm=1000, ranks_per_node=2)


def test_a_saved_plan_is_explained_as_it_was_made(capsys, batch, tmp_path):
    saved = tmp_path / "plan.json"
    run(capsys, "plan", batch, "--ranks", "4", "--ratio", "2", "--mode", "zigzag", "--out", str(saved))
    plan = indexer_task_plan((5, 3, 8), 4, 2, "zigzag")
    assert from_json(saved.read_text()) == plan
    assert run(capsys, "explain", str(saved))[0] == explain(plan) + "\n"
    assert run(capsys, "explain", str(saved), "--rank", "2")[0] == explain(plan_route(plan, 2)) + "\n"
    assert from_json(run(capsys, "explain", str(saved), "--rank", "2", "--json")[0]) == plan_route(plan, 2)
    (row,) = json.loads(run(capsys, "explain", str(saved), "--json")[0])["plans"]
    assert (row["mode"], row["moved_rows"]) == ("zigzag", plan.moved_rows)


def test_several_ranks_give_several_plans(capsys, batch, tmp_path):
    out, _ = run(capsys, "plan", batch, "--ranks", "2,4,2", "--json", "--out", str(tmp_path / "plan.json"))
    assert [plan["size"] for plan in json.loads(out)["plans"]] == [2, 4]
    assert from_json((tmp_path / "plan-4.json").read_text()).size == 4
    assert len(json.loads(run(capsys, "explain", batch, "--ranks", "2,4", "--rank", "1", "--json")[0])["routes"]) == 2


def test_compare_has_the_figures_of_all_modes(capsys, batch):
    out, err = run(capsys, "compare", batch, "--ranks", "2,4", "--bytes-out", "100", "--bytes-back", "4", "--json")
    found = json.loads(out)
    assert err == ""
    assert (found["tokens"], found["documents"]) == (16, 3)
    assert [comparison["ranks"] for comparison in found["comparisons"]] == [2, 4]
    first = found["comparisons"][0]
    assert (first["block_size"], first["zigzag_min_length"]) == (8, 8)
    assert [row["mode"] for row in first["rows"]] == [mode.value for mode in IndexerMode]
    report = indexer_plan_report(indexer_task_plan((5, 3, 8), 2, 1, "locality"), 100, 4)
    row = first["rows"][-1]
    assert (row["max_load"], row["moved_rows"], row["bytes"]) == (report.max_load, 1, 104)
    assert row["planning_ms"] > 0


@pytest.mark.parametrize("ranks", ["8", "8,32,128"])
def test_tables_fit_into_80_columns(capsys, ranks):
    for command in ("compare", "bounds"):
        options = ["--tokens", "1048576", "--ratio", "4", "--row-cost", "7"]
        out, _ = run(capsys, command, "published", "--ranks", ranks, *options)
        assert max(map(len, out.splitlines())) <= 80
        assert "\u2026" not in out  # nothing was cut


def test_a_mode_that_cannot_be_planned_is_said_and_the_others_go_on(capsys, batch, tmp_path, monkeypatch):
    out, _ = run(capsys, "compare", batch, "--ranks", "2", "--capacity", "1")
    assert out.count("not planned, [HP-INDEX-006]") == 3
    monkeypatch.setattr(cli_indexer, "MOST_TASKS", 20)
    monkeypatch.setattr("hpfun.comparison.MOST_TASKS", 20)
    equal = tmp_path / "equal.txt"
    equal.write_text("16 " * 8)
    rows = json.loads(run(capsys, "compare", str(equal), "--ranks", "2", "--json")[0])["comparisons"][0]["rows"]
    assert rows[1] == {"name": "zigzag", "skipped": "some 32 tasks, more than 20"}
    assert [row["name"] for row in rows if "skipped" not in row] == ["none", "greedy", "hybrid", "locality"]
    out, err = run(capsys, "plan", str(equal), "--ranks", "2", "--mode", "zigzag", status=2)
    assert "HP-INPUT-003" in err


@given(st.lists(st.integers(1, 50), min_size=1, max_size=10), st.integers(1, 8), st.integers(1, 9), st.integers(1, 60))
def test_the_estimate_of_tasks_is_seldom_exceeded(lengths, size, block, threshold):
    documents = PackedDocuments([*lengths, -sum(lengths) % size + size])
    block = min(block, documents.total // size)
    for mode in IndexerMode:
        options = {"block_size": block} if mode in ("greedy", "hybrid") else {}
        options |= {"zigzag_min_length": threshold} if mode == "hybrid" else {}
        plan = indexer_task_plan(documents, size, 1, mode, **options)
        assert len(plan.task_starts) <= tasks_at_most(documents, size, mode, block, threshold)


def test_bounds_are_those_of_the_library(capsys, batch):
    (row,) = json.loads(run(capsys, "bounds", batch, "--ranks", "2", "--json")[0])["bounds"]
    assert row["makespan_bound"] == makespan_lower_bound((5, 3, 8), 2, 1)
    assert row["moved_rows_bound"] == moved_rows_lower_bound((5, 3, 8), 2, 1, row["makespan_bound"])
    assert row["imbalance_now"] == indexer_task_plan((5, 3, 8), 2, 1, "none").imbalance


def test_a_batch_without_any_work_has_bounds_and_a_comparison(capsys, batch):
    for command in ("bounds", "compare"):
        run(capsys, command, batch, "--ranks", "2", "--ratio", "100")


@pytest.mark.parametrize("name", ["stdlib", "published"])
def test_named_workloads_are_the_library_s(capsys, name):
    out, _ = run(capsys, "plan", name, "--tokens", "4096", "--seed", "7", "--json")
    assert from_json(out).documents == workload(name, 4096, 7).documents


def test_a_pack_that_does_not_divide_is_refused_or_fitted(capsys, batch):
    _, err = run(capsys, "plan", batch, "--ranks", "3", status=2)
    assert "HP-INDEX-002" in err
    assert "--fit" in err
    out, err = run(capsys, "plan", batch, "--ranks", "3", "--fit", "--json")
    assert from_json(out).documents == PackedDocuments((5, 3, 7))
    assert "15 of 16" in err
    # one pack for all group sizes: a multiple of 2 and 3
    out, _ = run(capsys, "plan", batch, "--ranks", "2,3", "--fit", "--json")
    assert [plan["documents"]["lengths"] for plan in json.loads(out)["plans"]] == [[5, 3, 4]] * 2
    run(capsys, "plan", batch, "--ranks", "32", "--fit", status=2)


def test_a_file_is_cut_to_a_total_and_its_documents_to_a_cap(capsys, batch):
    out, err = run(capsys, "plan", batch, "--total", "10", "--ranks", "2", "--json")
    assert from_json(out).documents == PackedDocuments((5, 3, 2))
    assert "10 of 16" in err
    out, _ = run(capsys, "plan", batch, "--cap", "4", "--ranks", "1", "--json")
    assert from_json(out).documents == PackedDocuments((4, 3, 4))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_file_and_standard_input_give_the_same_plan(form, capsys, tmp_path, monkeypatch):
    text = FORMS[form]([5, 3, 8])
    path = tmp_path / "batch"
    path.write_bytes(text.encode())
    expected = indexer_task_plan((5, 3, 8), 2, 1, "locality")
    assert from_json(run(capsys, "plan", str(path), "--ranks", "2", "--json")[0]) == expected
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert from_json(run(capsys, "plan", "-", "--ranks", "2", "--json")[0]) == expected


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("command", ["plan", "compare", "explain", "bounds"])
def test_bad_files_exit_with_2_and_say_their_code(name, command, capsys, tmp_path):
    content, code = BAD[name]
    path = tmp_path / "batch.txt"
    path.write_bytes(content)
    out, err = run(capsys, command, str(path), "--ranks", "1", status=2)
    assert out == ""
    assert err.startswith(f"[{code}] at `batch.txt")
    assert err.count("\n") == 1
    out, err = run(capsys, command, str(path), "--ranks", "1", "--json", status=2)
    assert err == ""
    error = json.loads(out)["error"]
    assert error["code"] == code
    assert set(error) == {"code", "where", "message", "facts", "suggestion", "violations"}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("plan", "no-such-file"), "HP-INPUT-001"),
        (("plan", "BATCH", "--lengths", "--cu-seq-lens"), "HP-INPUT-002"),
        (("compare", "BATCH", "--picture", "plans.bmp"), "HP-INPUT-002"),
        (("plan", "BATCH", "--tokens", "17"), "HP-INPUT-003"),
        (("plan", "BATCH", "--cap", "0"), "HP-INPUT-003"),
        (("plan", "published", "--seed", "-1"), "HP-INPUT-003"),
        (("plan", "published", "--tokens", "9" * 18), "HP-INPUT-003"),
        (("plan", "BATCH", "--ranks", "0"), "HP-INDEX-002"),
        (("plan", "BATCH", "--ranks", "2,,4"), "HP-INDEX-002"),
        (("plan", "BATCH", "--ranks", "2.0"), "HP-INDEX-002"),
        (("plan", "BATCH", "--ranks", "9" * 30), "HP-INDEX-002"),
        (("plan", "BATCH", "--ratio", "0"), "HP-INDEX-002"),
        (("plan", "BATCH", "--mode", "best"), "HP-INDEX-003"),
        (("plan", "BATCH", "--mode", "greedy"), "HP-INDEX-004"),
        (("compare", "BATCH", "--block-size", "0"), "HP-INDEX-004"),
        (("plan", "BATCH", "--mode", "hybrid"), "HP-INDEX-005"),
        (("compare", "BATCH", "--zigzag-min-length", "-1"), "HP-INDEX-005"),
        (("plan", "BATCH", "--capacity", "1"), "HP-INDEX-006"),
        (("explain", "BATCH", "--rank", "8"), "HP-INDEX-007"),
        (("explain", "BATCH", "--rank", "-1"), "HP-INDEX-007"),
        (("plan", "BATCH", "--row-cost", "9" * 30), "HP-INDEX-009"),
        (("plan", "BATCH", "--tolerance-ppm", "-1"), "HP-INDEX-011"),
        (("compare", "BATCH", "--bytes-out", "-1"), "HP-INDEX-011"),
    ],
)
def test_refused_options_exit_with_2_and_say_their_code(arguments, code, batch, capsys):
    out, err = run(capsys, *(batch if word == "BATCH" else word for word in arguments), status=2)
    assert out == ""
    assert err.startswith(f"[{code}]")


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan",),
        ("plans", "published"),
        ("plan", "published", "--rank", "1"),
        ("plan", "published", "--ratio", "1.5"),
        ("plan", "published", "--tokens", "many"),
    ],
)
def test_wrong_use_exits_with_1_and_without_a_traceback(arguments, capsys):
    out, err = run(capsys, *arguments, status=1)
    assert out == ""
    assert err
    assert "Traceback" not in err


def test_help_names_the_commands(capsys):
    out, _ = run(capsys, "--help")
    assert all(name in out for name in ("compare", "plan", "explain", "bounds", "published", "stdlib"))
    assert max(map(len, out.splitlines())) <= 80
    for command in ("compare", "plan", "explain", "bounds"):
        assert "--ranks" in run(capsys, command, "--help")[0]


def test_compare_draws_a_picture(capsys, batch, tmp_path):
    path = tmp_path / "plans.png"
    _, err = run(capsys, "compare", batch, "--ranks", "2", "--picture", str(path), "--json")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert "plans.png" in err


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(lengths=st.lists(st.integers(1, 3000), min_size=1, max_size=12), ranks=st.sampled_from(["1", "2", "2,3", "16"]))
def test_any_lengths_are_compared_with_fit(lengths, ranks, capsys, tmp_path):
    lengths = [*lengths, 48]
    path = tmp_path / "batch.txt"
    path.write_text(" ".join(map(str, np.cumsum([0, *lengths]))))
    out, _ = run(capsys, "compare", str(path), "--ranks", ranks, "--fit", "--json")
    for comparison in json.loads(out)["comparisons"]:
        assert comparison["rows"][-1]["makespan_gap"] >= 0


def test_the_installed_command_reads_a_pipe_and_exits_with_its_status(batch):
    command = [sys.executable, "-m", "hpfun.cli"]
    good = subprocess.run([*command, "plan", "-", "--ranks", "2", "--json"], input=b"0 5 8 16", capture_output=True)
    assert (good.returncode, good.stderr) == (0, b"")
    assert from_json(good.stdout) == indexer_task_plan((5, 3, 8), 2, 1, "locality")
    bad = subprocess.run([*command, "plan", batch, "--ranks", "3"], capture_output=True)
    assert (bad.returncode, bad.stdout) == (2, b"")
    assert bad.stderr.startswith(b"[HP-INDEX-002]")


def test_a_plan_that_cannot_be_written_is_refused(capsys, batch, tmp_path):
    _, err = run(capsys, "plan", batch, "--ranks", "2", "--out", str(tmp_path / "no" / "plan.json"), status=2)
    assert err.startswith("[HP-INPUT-001] at `--out`")
