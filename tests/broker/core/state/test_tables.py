"""Parts of the state: what is assigned or put can be undone, and raises the revision if plans are made of it."""

from __future__ import annotations

import pytest
from support.memory_store import MemoryStore

from gpulease.broker.core.state.tables import Changes, Part, Table, at_hand, cell, cell_of, table, whole


class Kitchen(Part):
    guests: int = cell(0)
    menu: tuple[str, int] = cell(("soup", 1), planned=lambda menu: menu[0])
    open: bool = cell(False, planned=whole)
    orders: list[str] = cell_of(list)
    stock: Table[str, int] = table(planned=True)
    notes: Table[str, int] = table()
    recipes: dict[str, str] = at_hand()


@pytest.fixture
def kitchen() -> Kitchen:
    return Kitchen(MemoryStore(), Changes())


def test_cells_and_tables_are_as_they_were_after_an_undo(kitchen: Kitchen) -> None:
    kitchen.guests = 1
    kitchen.stock.put("salt", 5)
    kitchen.changes.keep()
    kitchen.guests = 2
    kitchen.guests += 1
    kitchen.stock.replace({"pepper": 1})
    kitchen.notes.put_or_drop("today", 1)
    assert (kitchen.guests, dict(kitchen.stock), dict(kitchen.notes)) == (3, {"pepper": 1}, {"today": 1})
    kitchen.changes.undo()
    assert (kitchen.guests, dict(kitchen.stock), dict(kitchen.notes)) == (1, {"salt": 5}, {})
    assert kitchen.changes.count == 0


@pytest.mark.parametrize("name", ["stock", "recipes", "store", "changes", "waiters"])
def test_nothing_but_a_cell_can_be_assigned(kitchen: Kitchen, name: str) -> None:
    with pytest.raises(AttributeError, match=f"Kitchen has no cell '{name}'"):
        setattr(kitchen, name, {})


def test_the_revision_rises_when_what_plans_read_has_changed(kitchen: Kitchen) -> None:
    def raised() -> bool:
        before, kitchen.changes.revision = kitchen.changes.revision, 0
        return before > 0

    kitchen.guests = 7
    kitchen.menu = ("soup", 2)
    kitchen.open = False
    kitchen.notes.put("today", 1)
    assert not raised()
    kitchen.menu = ("stew", 2)
    assert raised()
    kitchen.open = True
    assert raised()
    kitchen.stock.put("salt", 1)
    assert raised()
    kitchen.stock.replace({"salt": 1})
    assert not raised()


def test_parts_share_no_first_values() -> None:
    one, other = (Kitchen(MemoryStore(), Changes()) for _ in range(2))
    one.orders.append("tea")
    one.recipes["tea"] = "water"
    one.notes.put("today", 1)
    assert (other.orders, other.recipes, dict(other.notes)) == ([], {}, {})
