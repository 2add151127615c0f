"""Layers that share, schedules and attention plans in words."""

import pytest
from hypothesis import given

from hpfun import explain, indexer_task_plan, sliding_window_plan, strategies
from hpfun.attention import (
    AttentionConfig,
    LayerSharing,
    OverlapOptions,
    OverlapSchedule,
    attention_plan,
    attention_route,
    overlap_schedule,
)
from tests.oracles import attention_plan as loops
from tests.refusals import refused

LAYERS = LayerSharing(compress_ratios=(0, 4, 4, 8, 4, 4), kv_sources=(1, 3), index_sources=(1, 4), dense_layers=(3, 5))
PACK = (0, 40, 64)


def narrow(text):
    return max(map(len, text.splitlines())) <= 80


@pytest.mark.rule("ATTN-18")
def test_layers_say_whose_keys_and_whose_choices_they_read():
    assert explain(LAYERS).splitlines() == [
        "6 layers:",
        "  ratio 0: layer 0",
        "    a window alone",
        "  ratio 4: layers 1, 2, 4, 5",
        "    keys: made by layer 1",
        "    choices: by layers 1, 4",
        "    all visible keys: layer 5",
        "  ratio 8: layer 3",
        "    keys: each makes its own",
        "    all visible keys: each layer",
    ]


@pytest.mark.rule("ATTN-18")
def test_a_plan_says_what_moves_and_what_balance_gains():
    config = AttentionConfig(sharing=LAYERS, window=5, topk=2, overlapping_ratios=(4,))
    home, shared = (indexer_task_plan((40, 24), 4, 4, mode) for mode in ("none", "locality"))
    assert home.imbalance > shared.imbalance > 1
    assert explain(attention_plan(PACK, 4, config, "locality")).splitlines() == [
        "Attention plan: 64 tokens in 2 documents over 4 ranks.",
        f"Window of 5 rows: {sliding_window_plan(PACK, 16, 4, 5).moved_rows} rows move, the longest halo is 4.",
        "Ratio 0: 1 layer with a window alone.",
        "Ratio 4: 4 layers, 16 keys; 14 keys move.",
        "  blocks: each read with the one before",
        "  choices: by layers 1, 4",
        "  all visible keys: layer 5",
        "  top-k: 2",
        f"  imbalance: {home.imbalance:.3f} at home, {shared.imbalance:.3f} with locality: "
        f"{shared.moved_rows} rows move",
        "Ratio 8: 1 layer, 8 keys; 7 keys move.",
        "  all visible keys: each layer",
    ]
    plain = explain(attention_plan(PACK, 4, config))
    assert plain.splitlines()[8] == f"  imbalance: {home.imbalance:.3f} at home"
    alone = AttentionConfig(sharing=LayerSharing(compress_ratios=(8,), dense_layers=(0,)), window=0)
    assert "No window." in explain(attention_plan(PACK, 4, alone, "zigzag"))


@pytest.mark.rule("ATTN-18")
def test_a_schedule_is_a_timeline():
    text = explain(overlap_schedule(OverlapOptions(kind="dense", halo=False, overlapped=True)))
    assert text.splitlines() == [
        "8 events, 2 transfers; v launched, | under way, ^ waited for.",
        "                                 window keys",
        "  compute compression_inputs",
        "  compute attention_projections",
        "  launch window                    v",
        "  compute compression              |",
        "  launch keys                      |     v",
        "  wait keys                        |     ^",
        "  wait window                      ^",
        "  compute attention",
    ]
    assert explain(OverlapSchedule(())) == "0 events, 0 transfers."


@pytest.mark.rule("ATTN-18")
@given(strategies.overlap_schedules())
def test_a_timeline_marks_every_transfer_from_launch_to_wait(schedule):
    lines = explain(schedule).splitlines()
    header, rows = (lines[1], lines[2:]) if schedule.launches else ("", lines[1:])
    assert narrow(explain(schedule))
    for event, row in zip(schedule.events, rows, strict=True):
        running = loops.under_way(schedule.events, event)
        for name in schedule.launches:
            at = f"{header} ".index(f" {name} ") + 1
            mark = row[at : at + len(name)].strip()
            expected = {f"launch {name}": "v", f"wait {name}": "^"}.get(event, "|" if name in running else "")
            assert mark == expected


@pytest.mark.rule("ATTN-18")
@given(strategies.layer_sharings(max_layers=20))
def test_every_sharing_names_each_of_its_ratios(sharing):
    text = explain(sharing)
    assert narrow(text)
    assert text.count("  ratio ") == len(set(sharing.compress_ratios.tolist()))
    assert text.count("choices: ") == len({int(sharing.compress_ratios[n]) for n in sharing.index_sources})


@pytest.mark.rule("ATTN-18")
@given(strategies.attention_plans())
def test_every_plan_says_the_numbers_of_its_parts(plan):
    text = explain(plan)
    assert narrow(text)
    for ratio in plan.config.sharing.ratios:
        keys = len(loops.all_keys(tuple(plan.documents.boundaries.tolist()), ratio))
        assert f"Ratio {ratio}: " in text
        assert f", {keys} key" in text
    shown = [f"{plan.indexer_plan(ratio).imbalance:.3f} with" for ratio in plan.config.choosing_ratios]
    assert all((part in text) == plan.balanced for part in shown)
    assert text.count("top-k: ") == len(shown)


@pytest.mark.rule("ATTN-18")
def test_views_of_one_rank_have_no_words():
    config = AttentionConfig(sharing=LAYERS, window=5, topk=2)
    with refused("HP-SERIAL-002"):
        explain(attention_route(attention_plan(PACK, 4, config), 0))
