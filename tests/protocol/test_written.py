"""Parts of an answer that are written a piece at a time arrive as if it had been written whole."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulease.errors import ProtocolError
from gpulease.protocol.wire import MAX_VALUES, Unpacker, Written, listed, pack, to_text

VALUES = st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3), max_leaves=5)
DOCUMENTS = st.dictionaries(st.text("abcxyz_", min_size=1), VALUES, max_size=4)


@given(st.lists(DOCUMENTS, max_size=5), DOCUMENTS)
def test_rows_that_were_written_apart_are_read_as_a_list(rows: list[dict[str, Any]], more: dict[str, Any]) -> None:
    message = {"ok": {**more, "rows": listed([to_text(row) for row in rows])}}
    assert Unpacker().feed(pack(message)) == [{"ok": {**more, "rows": rows}}]


def test_a_table_that_was_written_once_is_read_as_a_table() -> None:
    table = {"L1": {"note": 'a "quoted" \\ note'}}
    message = {"snapshot": {"leases": Written(to_text(table)), "jobs": {}, "open": 0}}
    assert Unpacker().feed(pack(message)) == [{"snapshot": {"leases": table, "jobs": {}, "open": 0}}]


def test_a_request_of_too_many_values_is_refused_before_it_is_read() -> None:
    with pytest.raises(ProtocolError, match="more than 100000 values"):
        Unpacker(values=MAX_VALUES).feed(pack({"do": "add", "each": [{}] * (MAX_VALUES + 2)}))


def test_commas_inside_of_texts_are_no_values() -> None:
    words = ['1,2,"3",' * 100] * 1000
    assert Unpacker(values=MAX_VALUES).feed(pack({"words": words})) == [{"words": words}]
