"""A request goes where it starts soonest; of equals, where less is asked for."""

from __future__ import annotations

from gpulease.hosts.choice import HostOffer, Move, moves, spread


def test_the_soonest_is_taken_and_of_equals_the_lesser_load() -> None:
    late, soon = HostOffer("a", [60.0], 0.0, 8), HostOffer("b", [5.0], 3.0, 1)
    assert spread([late, soon], 1) == ["b"]
    assert spread([HostOffer("a", [0.0], 0.5, 2), HostOffer("b", [0.0], 0.25, 4)], 1) == ["b"]


def test_a_known_start_comes_before_an_unknown_one() -> None:
    assert spread([HostOffer("a", [None], 0.0, 8), HostOffer("b", [9999.0], 5.0, 1)], 1) == ["b"]


def test_a_batch_fills_what_is_free_and_then_goes_by_load() -> None:
    two, four = HostOffer("two", [0.0, 0.0], 0.0, 2), HostOffer("four", [0.0] * 4, 0.0, 4)
    placed = spread([two, four], 9)
    assert {host: placed[:6].count(host) for host in ("two", "four")} == {"two": 2, "four": 4}
    assert placed[6:].count("four") == 2


def test_a_job_moves_only_where_it_gains() -> None:
    there = {"r": [HostOffer("b", [0.0, 30.0, None], 0.0, 1), HostOffer("a", [None], 1.0, 1)]}
    waiting = [("a", 1, 3600.0, "r"), ("a", 2, 70.0, "r"), ("a", 3, None, "r"), ("a", 4, None, "r")]
    assert moves(waiting, there, 60.0) == [Move(1, "a", "b"), Move(3, "a", "b")]


def test_nothing_moves_to_where_nobody_knows_when_it_starts() -> None:
    there = {"r": [HostOffer("b", [None], 0.0, 8)]}
    assert moves([("a", 1, None, "r")], there, 60.0) == []


def test_a_host_that_can_never_serve_it_is_no_candidate() -> None:
    assert HostOffer.of("a", {"possible": False, "starts": [], "load": 0, "gpus": 1}) is None
