"""A copy of the state while the broker works: its file stays as it is while a client copies it.

What is committed meanwhile is in the log beside it. The client's connection, or ten minutes, bound how long.
"""

from __future__ import annotations

from gpulease.broker.core.events import Received
from gpulease.broker.core.instructions import FreezeState, UnfreezeState
from gpulease.broker.core.turn import Turn
from gpulease.errors import NotPermitted, TooMuch
from gpulease.model.peer import Peer
from gpulease.protocol.messages import BackedUp, BackupRequest

LONGEST = 600.0  # seconds for a copy


def backup(turn: Turn, event: Received) -> None:
    state, peer = turn.state, event.peer
    if not state.manages(peer.uid):
        raise NotPermitted("Only root and the user who runs the broker may copy its state.", "Ask one of them.")
    message: BackupRequest = event.message
    if message.get("done"):
        held = state.backup is not None and state.backup[0] is peer
        client_gone(turn, peer)
        return turn.reply(peer, BackedUp(held=held))
    if state.backup is not None:
        raise TooMuch("Another copy of the state is being made.", "Try again when it is done.")
    number = f"{turn.now}"
    state.backup = (peer, number)
    turn.alarm(LONGEST, "backup", number)
    return turn.emit(FreezeState(peer))


def client_gone(turn: Turn, peer: Peer) -> None:
    if turn.state.backup is not None and turn.state.backup[0] is peer:
        turn.state.backup = None
        turn.emit(UnfreezeState())


def too_long(turn: Turn, number: str) -> None:
    if turn.state.backup is not None and turn.state.backup[1] == number:
        client_gone(turn, turn.state.backup[0])
