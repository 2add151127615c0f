"""Reports on bank plans against a count over all ranks' exchanges, and the words of this family's values."""

import re
import time

import attrs
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hpfun import (
    CsaTndPlan,
    PackedSequence,
    RowExchange,
    SequenceBankPlan,
    SequenceReport,
    bank_route,
    compression_halo_plan,
    csa_tnd_plan,
    document_compression_plan,
    document_prefix_plan,
    explain,
    indexer_segments,
    sequence_report,
    sliding_window_plan,
    traffic_matrix,
)
from hpfun import strategies as hps
from hpfun.explain import PARTNERS_SHOWN, ROWS_SHOWN
from hpfun.sequence.bank import KINDS
from hpfun.workloads import workload
from tests.refusals import refused

WORKED = (0, 5, 8, 16)


@st.composite
def any_bank_plans(draw):
    """Plans that no document makes: ranks without rows, banks that start anywhere."""
    own = draw(st.lists(st.integers(0, 4), min_size=1, max_size=7))
    offsets = [sum(own[:rank]) for rank in range(len(own) + 1)]
    starts = [draw(st.integers(0, offset)) for offset in offsets[:-1]]
    return SequenceBankPlan(draw(st.sampled_from(KINDS)), offsets, starts)


def counted(plan):
    """Row by row: rows received, senders, peers, and what an all-gather and a ring would move."""
    owners = [rank for rank in range(plan.size) for _ in range(plan.own_rows[rank])]
    banks = [range(plan.bank_starts[rank], plan.owner_offsets[rank + 1]) for rank in range(plan.size)]
    pairs = {(owners[row], rank) for rank, bank in enumerate(banks) for row in bank if owners[row] != rank}
    return {
        "halo_rows": [sum(1 for row in bank if owners[row] != rank) for rank, bank in enumerate(banks)],
        "bank_rows": [len(bank) for bank in banks],
        "senders": [len({source for source, target in pairs if target == rank}) for rank in range(plan.size)],
        "receivers": [len({target for source, target in pairs if source == rank}) for rank in range(plan.size)],
        "peers": [
            len({*(s for s, t in pairs if t == rank), *(t for s, t in pairs if s == rank)}) for rank in range(plan.size)
        ],
        "all_gather_rows": sum(1 for rank in range(plan.size) for owner in owners if owner != rank),
        "ring_rows": sum(1 for rank in range(plan.size) for owner in owners if owner < rank),
    }


@pytest.mark.rule("SEQ-12")
@given(hps.sequence_bank_plans() | any_bank_plans(), st.integers(0, 2**20))
@example(SequenceBankPlan("halo", [0, 4, 8, 12, 16], [0, 4, 1, 12]), 3)  # starts that fall
@example(SequenceBankPlan("prefix", [0, 2, 2, 2, 3], [0, 0, 0, 1]), 3)  # ranks without rows between
@example(SequenceBankPlan("prefix", [0, 0, 0], [0, 0]), 3)  # no row at all
def test_a_report_is_what_counting_over_all_exchanges_gives(plan, width):
    report = sequence_report(plan, width)
    expected = counted(plan)
    for name in ("halo_rows", "bank_rows", "senders", "receivers", "peers"):
        assert getattr(report, name).tolist() == expected[name], name
    exchanges = [bank_route(plan, rank).exchange for rank in range(plan.size)]
    rows = traffic_matrix(exchanges)
    assert report.moved_rows == rows.sum() == plan.moved_rows
    assert report.moved_bytes == int(traffic_matrix(exchanges, width).sum())
    assert report.senders.tolist() == (rows > 0).sum(axis=0).tolist()
    assert report.receivers.tolist() == (rows > 0).sum(axis=1).tolist()
    assert report.peers.tolist() == ((rows > 0) | (rows.T > 0)).sum(axis=1).tolist()
    assert report.own_rows.tolist() == [exchange.num_source_rows for exchange in exchanges]
    assert report.max_bank_rows == max(exchange.num_target_rows for exchange in exchanges)
    assert report.all_gather_bytes == expected["all_gather_rows"] * width
    assert report.ring_bytes == expected["ring_rows"] * width
    assert (report.kind, report.size, report.total_rows) == (plan.kind, plan.size, plan.total_rows)
    assert report.moved_rows <= report.ring_rows <= report.all_gather_rows


@pytest.mark.rule("SEQ-12")
@given(hps.sequence_bank_plans() | any_bank_plans())
def test_shares_are_rows_over_rows_and_zero_where_nothing_could_move(plan):
    report, expected = sequence_report(plan), counted(plan)
    moved = sum(expected["halo_rows"])
    shares = [moved / expected[name] if expected[name] else 0.0 for name in ("all_gather_rows", "ring_rows")]
    assert [report.share_of_all_gather, report.share_of_ring] == shares
    assert all(0 <= share <= 1 for share in shares)


@pytest.mark.rule("SEQ-12")
def test_one_document_at_ratio_1_moves_as_much_as_a_ring():
    report = sequence_report(document_prefix_plan((0, 16), 4, 4, ratio=1), 10)
    assert (report.moved_bytes, report.ring_bytes, report.all_gather_bytes) == (240, 240, 480)
    assert (report.share_of_ring, report.share_of_all_gather) == (1.0, 0.5)
    assert report.peers.tolist() == [3, 3, 3, 3]


@pytest.mark.rule("SEQ-12")
def test_ten_thousand_ranks_are_reported_within_a_second():
    documents = workload("published", 8192 * 10_000).documents
    plans = (
        sliding_window_plan(documents, 8192, 10_000, 20_000),
        document_prefix_plan(documents, 8192, 10_000, 4),
        compression_halo_plan(documents, 128, 8192, 10_000, overlap=True),
    )
    for plan in plans:
        started = time.perf_counter()
        report = sequence_report(plan, 1152)
        assert time.perf_counter() - started < 1
        some = [0, 1, 4999, 9998, 9999]
        exchanges = [bank_route(plan, rank).exchange for rank in some]
        assert report.senders[some].tolist() == [int((part.output_splits > 0).sum()) for part in exchanges]
        assert report.receivers[some].tolist() == [int((part.input_splits > 0).sum()) for part in exchanges]


@pytest.mark.rule("SEQ-12")
def test_numbers_beyond_int64_are_exact():
    local = 2**58
    plan = document_prefix_plan((0, 16 * local), local, 16, ratio=1)
    report = sequence_report(plan, 2**40)
    assert report.moved_rows == report.ring_rows == 120 * local
    assert report.moved_bytes == 120 * local * 2**40
    assert report.all_gather_bytes == 15 * 16 * local * 2**40
    assert report.share_of_all_gather == 0.5


@pytest.mark.rule("SEQ-12")
@pytest.mark.parametrize("width", [-1, 1.0, True, None, "8"])
def test_a_bad_width_is_refused(width):
    with refused("HP-ROUTE-001") as caught:
        sequence_report(sliding_window_plan(WORKED, 4, 4, 4), width)
    assert caught.error.where == "bytes_per_row"


@pytest.mark.rule("SEQ-12")
@pytest.mark.parametrize("plan", [None, WORKED, bank_route(sliding_window_plan(WORKED, 4, 4, 4), 0)])
def test_what_is_no_plan_is_refused(plan):
    with refused("HP-ROUTE-008") as caught:
        sequence_report(plan)
    assert caught.error.facts == {"type": type(plan).__name__}


GOOD = SequenceReport("window", 100, [4, 4, 4, 4], [0, 4, 0, 4], [0, 1, 0, 1], [1, 0, 1, 0])


@pytest.mark.rule("SEQ-12")
def test_the_worked_report():
    assert sequence_report(sliding_window_plan(WORKED, 4, 4, window=6), 100) == GOOD


@pytest.mark.rule("SEQ-12")
@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "ring"},
        {"kind": 3},
        {"bytes_per_row": -1},
        {"own_rows": [4, 4, 4]},
        {"own_rows": [], "halo_rows": [], "senders": [], "receivers": []},
        {"own_rows": [4, 4, 4, -4]},
        {"own_rows": [2**62, 2**62, 4, 4]},
        {"own_rows": [4, 4, 4, 4.0]},
        {"halo_rows": [1, 4, 0, 4]},  # the first rank has none before it
        {"halo_rows": [0, 5, 0, 4]},
        {"halo_rows": [0, 0, 0, 4]},  # a sender, but no row
        {"senders": [0, 0, 0, 1]},  # a row, but no sender
        {"senders": [0, 2, 0, 0]},
        {"senders": [0, 1, 0, 2]},  # more pairs on one side than on the other
        {"receivers": [1, 0, 0, 1]},  # the last rank has none behind it
        {"receivers": [1, 0, 2, 0]},
    ],
)
def test_fields_that_do_not_fit_are_refused(changes):
    with refused("HP-ROUTE-008"):
        attrs.evolve(GOOD, **changes)


# words


def numbers(text):
    return {int(number) for number in re.findall(r"(?<![\d.])\d+(?![\d%])", text.replace("..", " to "))}


@pytest.mark.rule("SEQ-13")
@given(hps.sequence_reports())
def test_words_say_the_numbers_of_a_report(report):
    words = explain(report)
    if not report.moved_rows:
        assert words.startswith("No row moves")
        assert report.max_bank_rows in numbers(words)
        return
    said = {report.moved_rows, report.all_gather_rows, report.ring_rows, report.max_bank_rows}
    said |= {int(report.senders.max()), int(report.peers.max())}
    if report.bytes_per_row:
        said |= {report.bytes_per_row, report.moved_bytes, report.all_gather_bytes, report.ring_bytes}
    assert said <= numbers(words)
    for share in (report.share_of_all_gather, report.share_of_ring):
        assert (f"{share:.2%}" if share >= 0.0001 else "under 0.01%") in words


@pytest.mark.rule("SEQ-13")
@given(hps.sequence_bank_plans() | any_bank_plans())
def test_words_of_a_plan_hold_its_report_and_a_line_per_rank(plan):
    words, report = explain(plan), sequence_report(plan)
    assert explain(report) in words
    assert words.startswith(f"Bank plan {plan.kind}: {plan.total_rows} row")
    table = [line.split() for line in words.splitlines()][-plan.size :]
    for rank, cells in enumerate(table):
        expected = (rank, plan.own_rows[rank], plan.halo_rows[rank], plan.bank_rows[rank])
        assert tuple(map(int, cells)) == (*expected, report.senders[rank], report.peers[rank])


@pytest.mark.rule("SEQ-13")
@given(hps.sequence_routes(max_size=8).flatmap(st.sampled_from))
def test_words_of_a_route_say_its_bank_and_its_partners(route):
    words, exchange = explain(route), route.exchange
    assert words.startswith(f"Bank of rows {route.global_start}..{route.global_stop}: {route.halo_rows} received, ")
    assert f"{route.local_length} own." in words
    assert explain(exchange) in words
    for splits, what in ((exchange.output_splits, "from"), (exchange.input_splits, "to")):
        ranks = np.flatnonzero(splits).tolist()
        if len(ranks) > PARTNERS_SHOWN:
            assert f"{splits.sum()} rows {what} {len(ranks)} ranks, {ranks[0]} to {ranks[-1]}" in words
        else:
            for rank in ranks:
                assert re.search(rf" {splits[rank]} rows? {what} rank {rank}$", words, re.MULTILINE)


@pytest.mark.rule("SEQ-13")
@given(hps.compression_plans().flatmap(st.sampled_from))
def test_words_of_a_compression_plan_say_its_blocks(plan):
    words = explain(plan)
    assert explain(plan.halo) in words
    assert re.search(rf"Compresses {plan.num_blocks} blocks? of {plan.ratio} rows", words)
    assert (f"each read with the {plan.ratio} before it" in words) == plan.overlap
    assert re.search(rf"no rank has more than {plan.max_blocks} blocks?\.", words)
    lines = [numbers(line) for line in words.splitlines() if "of the bank" in line]
    assert len(lines) == min(plan.num_blocks, ROWS_SHOWN)
    for block, line in enumerate(lines):
        start = int(plan.block_starts[block])
        place = {int(plan.block_documents[block]), int(plan.block_positions[block])}
        assert line == {start, start + plan.ratio, *place}


@pytest.mark.rule("SEQ-13")
@given(hps.packed_sequences())
def test_words_of_a_shard_say_where_it_lies(shard):
    words = explain(shard)
    documents = shard.documents
    inside = {documents.documents_at([row])[0] for row in range(shard.local_start, shard.local_stop)}
    expected = {shard.local_start, shard.local_stop, shard.local_length, shard.global_length, min(inside), len(inside)}
    assert numbers(words) == expected | {documents.num_documents}


@pytest.mark.rule("SEQ-13")
@given(hps.csa_tnd_plans())
def test_words_of_a_packed_layout_say_its_sequences(plan):
    lines = explain(plan).splitlines()
    assert numbers(lines[0]) == {len(plan.residuals), len(plan.query_rows), len(plan.key_rows)}
    parts = (plan.query_starts, plan.query_stops, plan.key_starts, plan.key_stops, plan.residuals)
    assert [numbers(line) for line in lines[1:]] == [set(map(int, part)) for part in zip(*parts, strict=True)]


@pytest.mark.rule("SEQ-13")
def test_one_of_a_kind_is_written_as_one():
    plan = sequence_report(sliding_window_plan((0, 4), 2, 2, 2), 1)
    assert explain(plan).startswith("1 row moves, 1 byte at 1 a row.")
    words = explain(PackedSequence((0, 1), 0, 1, 1))
    assert words == "Rows 0..1 of a pack of 1 token in 1 document:\n  1 row of 1 document, from document 0 on."
    assert explain(CsaTndPlan([0], [1], [0], [1], [0])).startswith("Packed layout: 1 sequence, 1 row, 1 key:")
    exchange = RowExchange(2, 0, 1, 1, [0], [0, 1], [0, 1], [0], [], [], required=True)
    assert explain(exchange).splitlines()[:2] == [
        "Rank 0 of 2 places 1 source row into 1 slot:",
        "  sends 1 row to 1 rank, receives 1 from 1;",
    ]


LONG = workload("published", 2**22).documents
LONG_SHARD = LONG.total // 64
LONG_VALUES = {
    "window": lambda: sliding_window_plan(LONG, LONG_SHARD, 64, 128),
    "prefix": lambda: document_prefix_plan(LONG, LONG_SHARD, 64, 1),
    "report": lambda: sequence_report(document_prefix_plan(LONG, LONG_SHARD, 64, 1), 2**14),
    "route": lambda: bank_route(document_prefix_plan((0, LONG.total), LONG_SHARD, 64, 1), 40),
    "blocks": lambda: document_compression_plan(LONG, 4, LONG_SHARD, 64, 9, overlap=True),
    "shard": lambda: PackedSequence(LONG.boundaries, LONG_SHARD, LONG_SHARD, LONG.total),
    "layout": lambda: csa_tnd_plan(indexer_segments(LONG, 0, LONG.total, 4), 4),
}


@pytest.mark.rule("SEQ-13")
@pytest.mark.parametrize("name", LONG_VALUES)
def test_words_are_few_short_lines(name):
    lines = explain(LONG_VALUES[name]()).splitlines()
    assert len(lines) <= ROWS_SHOWN + 10
    assert max(map(len, lines)) <= 80


@pytest.mark.rule("SEQ-13")
def test_long_values_are_cut_and_say_so():
    blocks, layout = LONG_VALUES["blocks"](), LONG_VALUES["layout"]()
    assert explain(LONG_VALUES["window"]()).endswith("... 48 more ranks")
    assert explain(blocks).endswith(f"... {blocks.num_blocks - ROWS_SHOWN} more blocks")
    assert explain(layout).endswith(f"... {len(layout.residuals) - ROWS_SHOWN} more sequences")
