"""gpuget as a neighbour of the broker's: its own side (neighbours/gpuget.py) in the words of the seam."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Mapping

from gpulease.broker.instructions import Keep
from gpulease.broker.neighbours import Neighbour, Neighbours
from gpulease.neighbours.gpuget import Gpuget
from gpulease.neighbours.gpuget_address import read_address
from gpulease.places import Place


class GpugetBeside(Gpuget):
    def keep(self, told: Keep, claimed: frozenset[str]) -> None:
        self.tell(told.held, claimed, told.wanted)


def gpuget_beside(
    poll: select.epoll, place: Place, log: Callable[[str], None]
) -> Callable[[str, Neighbours], Neighbour]:
    """Brokers that share a Redis are told apart by their host and by the folder of their state."""
    broker = f"{os.uname().nodename}:{place.state}"

    def make(text: str, neighbours: Neighbours) -> Neighbour:
        def answered(number: int, held: Mapping[str, str]) -> None:
            neighbours.answered(made, number, held)

        made = GpugetBeside(poll, read_address(text), broker, answered, neighbours.changed, log)
        return made

    return make
