"""``hpfun recompute``: what it prints, saves, draws and refuses."""

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from hpfun import from_json, to_json
from hpfun.cli import main
from hpfun.recompute import RegionSize, choose_regions, frontier
from hpfun.recompute.picture import draw_frontiers, frontiers_figure
from tests.refusals import refused
from tests.test_recompute_budget import FOUR

SMALL = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.fixture(autouse=True)
def width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    return str(tmp_path / "config.json")


def run(capsys, *arguments, status=0):
    assert main(["recompute", *arguments]) == status
    return capsys.readouterr()


def test_the_choice_is_that_of_the_sizes_that_are_printed(capsys, config):
    out, _ = run(capsys, config, "--tokens", "128", "--budget", "50%", "--json")
    told = json.loads(out)
    sizes = tuple(RegionSize(**size) for size in told["sizes"])
    assert [size.fqn for size in sizes] == [f"model.layers.{layer}" for layer in range(3)]
    found = choose_regions(sizes, told["budget_bytes"])
    assert tuple(told["roots"]) == found.roots
    for name in ("kept_bytes", "peak_bytes", "replay_flops", "host_bytes"):
        assert told[name] == getattr(found.estimate, name)
    assert told["budget_bytes"] == told["all_bytes"] // 2 == sum(size.saved_bytes for size in sizes) // 2
    plan = from_json(json.dumps(told["plan"]))
    assert plan.roots == found.roots
    assert told["layer_count"]["takes"] == {"model.layers": [told["layer_count"]["layer_count"], 3]}
    assert told["layer_count"]["kept_bytes"] <= told["budget_bytes"]


def test_one_line_of_four_products_and_attention_is_the_work_of_a_layer(capsys, config):
    out, _ = run(capsys, config, "--tokens", "128", "--json")
    products = 2 * 128 * (32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 64)
    attention = 2 * 4 * 128 * 128 * (8 + 8)
    assert {size["replay_flops"] for size in json.loads(out)["sizes"]} == {products + attention}


def test_the_table_has_groups_totals_and_what_a_count_would_take(capsys, config):
    out, _ = run(capsys, config, "--tokens", "128", "--budget", "300KiB")
    assert "model.layers.0" in out
    assert "regions of 3 recomputed" in out
    assert "(budget 300 KiB)" in out
    assert "The smallest layer_count that fits is 2: it takes 2 of 3 in model.layers" in out
    assert "Outside of the regions" in out
    out, _ = run(capsys, config, "--tokens", "128", "--budget", "1GB")
    assert "0 regions of 3 recomputed" in out
    assert "layer_count that fits is 0" in out


def test_a_vision_model_says_that_a_count_takes_vision_blocks(capsys):
    out, _ = run(capsys, "qwen3_vl", "--tokens", "256")
    text = " ".join(out.split())
    assert "that fits is 44: it takes 27 of 27 in model.visual.blocks, 17 of 32 in model.language_model.layers" in text
    assert "Not reached by a document of text, and so left out: model.visual.blocks.0-26" in text


def test_the_share_is_of_the_whole_forward_also_with_exclusions(capsys):
    def share(*options):
        told = json.loads(run(capsys, "deepseek_v3", "--budget", "100GiB", *options, "--json").out)
        return len(told["roots"]), round(told["replay_flops"] / told["forward_flops"], 3)

    assert share() == (27, 0.443)
    assert share("--exclude", "*.self_attn") == (42, 0.364)


def test_patterns_of_regions_and_exclusions_and_inputs_on_the_host(capsys, config):
    options = ("--tokens", "128", "--budget", "60%", "--json")
    regions = json.loads(run(capsys, config, "--region", "*.mlp", "--region", "*.self_attn", *options).out)
    assert [size["fqn"].rpartition(".")[2] for size in regions["sizes"]] == ["self_attn", "mlp"] * 3
    assert regions["layer_count"] is None
    excluded = json.loads(run(capsys, config, "--exclude", "*.self_attn", *options).out)
    plan = from_json(json.dumps(excluded["plan"]))
    assert plan.exclusions == tuple(f"{root}.self_attn" for root in plan.roots)
    assert all(size["excluded_bytes"] > 0 for size in excluded["sizes"])
    swapped = json.loads(run(capsys, config, "--swap-inputs", *options).out)
    assert swapped["host_bytes"] > 0
    assert from_json(json.dumps(swapped["plan"])).options.swap_inputs


def test_a_plan_is_saved_and_explained_and_the_frontier_is_drawn(capsys, config, tmp_path):
    out, picture = tmp_path / "plan.json", tmp_path / "frontier.png"
    _, err = run(capsys, config, "--tokens", "128", "--out", str(out), "--picture", str(picture))
    assert f"Wrote {out}" in err
    assert picture.read_bytes()[:4] == b"\x89PNG"
    plan = from_json(out.read_text())
    assert to_json(plan) + "\n" == out.read_text()
    assert main(["explain", str(out)]) == 0
    assert "Recompute plan: " in capsys.readouterr().out
    assert main(["explain", str(out), "--module", f"{plan.roots[0]}.mlp"]) == 0
    assert f"in the region {plan.roots[0]}" in capsys.readouterr().out
    assert main(["explain", str(out), "--module", "lm_head", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"module": "lm_head", "text": "lm_head: in no region of this plan."}
    assert main(["explain", "stdlib", "--module", "a"]) == 2
    assert "HP-INPUT-002" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("nothing_here",), "HP-INPUT-002"),
        (("{config}", "--budget", "many"), "HP-RECOMPUTE-038"),
        (("{config}", "--budget", "1KiB"), "HP-RECOMPUTE-039"),
        (("{config}", "--dtype", "int8"), "HP-INPUT-002"),
        (("{config}", "--tokens", "0"), "HP-INPUT-003"),
        (("{config}", "--region", "*.layer"), "HP-RECOMPUTE-007"),
        (("bert", "--tokens", "64"), "HP-RECOMPUTE-005"),
        (("qwen3_vl", "--tokens", "64", "--region", "model.visual.blocks.*"), "HP-RECOMPUTE-007"),
        (("{config}", "--exclude", "*.atn"), "HP-RECOMPUTE-008"),
        (("{config}", "--picture", "a.txt"), "HP-INPUT-002"),
        (("{config}", "--out", "{folder}/none/plan.json"), "HP-INPUT-001"),
        (("{folder}/broken.json",), "HP-INPUT-001"),
        (("vit",), "HP-INPUT-002"),
    ],
)
def test_what_is_refused(capsys, config, tmp_path, arguments, code):
    (tmp_path / "broken.json").write_text("{")
    _, err = run(capsys, *(part.format(config=config, folder=tmp_path) for part in arguments), status=2)
    assert err.startswith(f"[{code}]")


def test_patterns_of_regions_need_no_layers(capsys):
    out, _ = run(capsys, "bert", "--tokens", "64", "--region", "bert.encoder.layer.?", "--budget", "60%")
    assert "bert.encoder.layer.0" in out


def test_a_budget_below_what_exclusions_keep_is_told_so(capsys, config):
    _, err = run(capsys, config, "--tokens", "128", "--exclude", "*.self_attn", "--budget", "50KiB", status=2)
    assert "exclude less" in err
    assert "swap" not in err
    _, err = run(capsys, config, "--tokens", "128", "--budget", "10KiB", status=2)
    assert "raise the budget, or swap inputs to the host" in err


def test_a_folder_with_a_config_is_read(capsys, config, tmp_path):
    assert json.loads(run(capsys, str(tmp_path), "--tokens", "8", "--json").out)["all_bytes"] > 0


def test_a_figure_has_a_step_for_every_choice_and_the_budget():
    device, host = frontier(FOUR), frontier(FOUR, swap_inputs=True)
    figure = frontiers_figure({"device": device, "host": host}, 22, budget_bytes=200)
    (axes,) = figure.axes
    line = axes.lines[0]
    assert [round(2**30 * x) for x in line.get_xdata()] == sorted(found.estimate.kept_bytes for found in device)
    assert list(line.get_ydata()) == [100 * found.estimate.replay_flops / 22 for found in device]
    assert len(axes.lines) == 5
    with refused("HP-INPUT-003"):
        frontiers_figure({}, 1)


def test_equal_frontiers_give_equal_pictures(tmp_path):
    for name in "ab":
        draw_frontiers({"device": frontier(FOUR)}, 22, tmp_path / f"{name}.png", dpi=50)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
