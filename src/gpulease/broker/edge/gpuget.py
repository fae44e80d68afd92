"""gpuget as a neighbour of the broker's: its own side (broker/neighbours/gpuget.py) in the words of the seam."""

from __future__ import annotations

import secrets
import select
from collections.abc import Callable, Mapping

from gpulease.broker.core.instructions import UpdateNeighbours
from gpulease.broker.edge.neighbours import Neighbour, Neighbours
from gpulease.broker.neighbours.gpuget import Gpuget
from gpulease.model.gpuget_address import read_address
from gpulease.model.store import Store


class GpugetNeighbour(Gpuget):
    def keep(self, update: UpdateNeighbours, claimed: frozenset[str]) -> None:
        self.tell({uuid: one.pid for uuid, one in update.held.items()}, claimed, update.wanted)


def gpuget_neighbour(
    poll: select.epoll, store: Store, log: Callable[[str], None]
) -> Callable[[str, Neighbours], Neighbour]:
    """What was set before is remembered until nothing of ours is left there."""
    broker, former = _name(store), set[str]()

    def make(text: str, neighbours: Neighbours) -> Neighbour:
        def answered(number: int, held: Mapping[str, str]) -> None:
            neighbours.answered(made, number, held)

        address, others = read_address(text), former - {text}
        former.add(text)
        made = GpugetNeighbour(poll, address, broker, answered, neighbours.changed, log, others, former.discard)
        return made

    return make


def _name(store: Store) -> str:
    """A random word distinguishes brokers that share a Redis: hosts are renamed, and containers are all alike."""
    known = store.get("facts", "gpuget")
    if known is None:
        known = {"broker": secrets.token_hex(8)}
        store.write("facts", "gpuget", known)
        store.commit(durable=True)
    return str(known["broker"])
