"""PURE: one host of several as a row of the page: each GPU with the colour of its state, or what is wrong."""

from __future__ import annotations

from gpulease.render.hosts import STATES, free, models, users
from gpulease.web.cards import WORDS
from gpulease.web.markup import Markup, tag
from gpulease.web.picture import Row

MAX_GPUS = 128  # of one host, each with a square
CELLS = 5  # beside the host's name


def host_row(row: Row, id: str) -> Markup:
    name, answer = tag("th", row["host"], scope="row"), row["answer"]
    if answer is None:
        return tag("tr", name, tag("td", row["trouble"], colspan=CELLS, class_="trouble"), id=id)
    simulated = tag("strong", " SIMULATED", class_="simulated") if answer["simulated"] else None
    total = len(answer["devices"])
    return tag(
        "tr",
        name,
        tag("td", models(answer) or "none", simulated),
        tag("td", f"{free(answer)} of {total}"),
        tag("td", answer["line_length"]),
        tag("td", *_states(answer["devices"])),
        tag("td", users(answer)),
        id=id,
    )


def _states(devices: list[Row]) -> list[Markup]:
    """A picture, and the same in words."""
    words = [_word(one["state"]) for one in devices]
    squares = [
        tag("span", one["label"], class_=f"gpu {word}", title=f"GPU {one['label']}: {word}")
        for one, word in zip(devices[:MAX_GPUS], words, strict=False)
    ]
    counts = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
    return [tag("div", *squares, class_="gpus-of-host", aria_hidden="true"), tag("span", counts, class_="note")]


def _word(state: str) -> str:
    return WORDS.get(state, state) if state in STATES else "unknown"
