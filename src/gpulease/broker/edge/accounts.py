"""The one source of what is known of users: names, groups, homes. The broker's loop never asks a directory itself.

A child is asked (broker/children/accounts.py), one question at a time and each with a deadline. What is known serves
for a minute and is then asked for again; while there is no answer, what was known last goes on to serve.
"""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Callable
from typing import Any

from gpulease.broker.child import Child
from gpulease.broker.children.accounts import look_up
from gpulease.broker.core.turn import AccountUnknown
from gpulease.errors import BrokerUnavailable
from gpulease.model.peer import Account
from gpulease.protocol.wire import pack

FRESH = 60.0  # seconds that an answer serves
ANSWER = 5.0  # seconds for one
MAX_NAMES = 1000  # that are remembered: they come in messages
LONGEST_NAME = 256  # letters
MAX_USERS = 10_000  # that are remembered: one user may have thousands of numbers

Question = tuple[str, Any]  # kind and name
SILENT = object()  # in the place of an answer


class Accounts:
    def __init__(
        self, poll: select.epoll, log: Callable[[str], None], fresh: float = FRESH, patience: float = ANSWER
    ) -> None:
        self._log, self._fresh, self._patience = log, fresh, patience
        self._accounts: dict[int, Account] = {}
        self._answers: dict[Question, tuple[float, Any]] = {}  # when, and what
        self._asked: Question | None = None  # which is under way
        self._users: dict[Question, None] = {}  # who somebody is; goes before names, of which a stranger may ask many
        self._names: dict[Question, None] = {}
        self._waiting: dict[Question, list[Callable[[], None]]] = {}
        self._child = Child(poll, ["gpulease.broker.children.accounts"])
        self._complained = False
        self._again = False  # another child was asked the same
        self.starting = True  # the loop has not begun: nobody else waits

    @property
    def descriptor(self) -> int:
        return self._child.descriptor

    @property
    def due(self) -> float | None:
        """When the question under way is overdue."""
        return self._child.due

    # ---------------------------------------------------------------- what is known

    def account(self, uid: int) -> Account | None:
        """As far as it is known now; the same value is changed when more is."""
        self._ask_if_old(("uid", uid))
        return self._accounts.get(uid)

    def groups_of(self, uid: int) -> tuple[str, ...]:
        """None while they are not known: that gives nobody a right, nor the share of a group."""
        found = self.account(uid)
        return () if found is None else found.groups

    def name_of(self, uid: int) -> str:
        """Without a name where there is no account, or none is known."""
        found = self.account(uid)
        return found.name if found is not None and found.exists else ""

    def shown_as(self, uid: int) -> str:
        """By the number, while nothing else is known."""
        found = self.account(uid)
        return str(uid) if found is None else found.name

    def home_of(self, uid: int) -> str | None:
        found = self.account(uid)
        return None if found is None else found.home

    def uid_of(self, name: str) -> int | None:
        uid: int | None = self._answer(("user", name)) if len(name) <= LONGEST_NAME else None
        return uid

    def has_group(self, name: str) -> bool:
        return len(name) <= LONGEST_NAME and bool(self._answer(("group", name)))

    def _answer(self, question: Question) -> Any:
        self._ask_if_old(question)
        if question not in self._answers:
            raise AccountUnknown(question)
        answer = self._answers[question][1]
        if answer is SILENT:
            raise BrokerUnavailable("The directory of users does not answer.", "Try again in a moment.")
        return answer

    def refresh(self) -> None:
        """All that is known is asked for again, when it is needed next."""
        uids = {question: answer for question, (_, answer) in self._answers.items() if question[0] == "uid"}
        self._answers = {question: (float("-inf"), answer) for question, answer in uids.items()}

    # ---------------------------------------------------------------- asking

    def when_known(self, question: Question, action: Callable[[], None]) -> None:
        """At once, or when there is an answer, or when there is none in time."""
        self._ask_if_old(question)
        if question in self._answers:
            action()
        else:
            self._waiting.setdefault(question, []).append(action)

    def _ask_if_old(self, question: Question) -> None:
        answer = self._answers.get(question)
        if answer is not None and time.monotonic() - answer[0] < self._fresh:
            return
        if question[0] != "uid":
            self._answers.pop(question, None)  # names are few, and whoever asks for one waits
        if self.starting:
            self._learn(question, look_up(*question))
        elif question != self._asked:
            (self._users if question[0] == "uid" else self._names)[question] = None
            self._send_next()

    def _send_next(self) -> None:
        line = self._users or self._names
        if self._asked is None and line:
            self._asked = next(iter(line))
            del line[self._asked]
            self._send()

    def _send(self) -> None:
        assert self._asked is not None
        kind, name = self._asked
        with contextlib.suppress(OSError):  # what cannot be asked is overdue, too
            self._child.send(pack({"kind": kind, "name": name}), time.monotonic() + self._patience)

    def read(self) -> None:
        messages = self._child.messages()
        if messages is None:  # it had nothing to do for a while, or was killed: another one is asked
            self.close()
            if self._asked is not None and not self._again:
                self._again = True
                self._send()
            return
        for message in messages:
            if self._asked is not None:
                self._complained = self._again = False
                self._next(message.get("told"))

    def overdue(self) -> None:
        """The last known answers stay in use. A question without an earlier answer gets an error."""
        self.close()
        if not self._complained:
            self._complained = True
            self._log("the directory of users does not answer: gpulease uses what it knew before")
        self._next(SILENT)

    def _next(self, answer: Any) -> None:
        assert self._asked is not None
        question, self._asked, self._child.due = self._asked, None, None
        self._learn(question, answer)
        self._send_next()
        for action in self._waiting.pop(question, ()):
            action()

    def _learn(self, question: Question, answer: Any) -> None:
        now = time.monotonic()
        if answer in (SILENT, None) and question in self._answers and question[0] == "uid":
            answer = self._answers[question][1]
        if question[0] != "uid" and len(self._answers) >= MAX_NAMES + len(self._accounts):
            self._answers = {one: known for one, known in self._answers.items() if one[0] == "uid"}
        self._answers[question] = (now, answer)
        if question[0] == "uid" and isinstance(answer, list):
            if len(self._accounts) >= MAX_USERS:
                del self._accounts[(oldest := next(iter(self._accounts)))], self._answers["uid", oldest]
            name, groups, home, exists = answer
            account = self._accounts.setdefault(question[1], Account(name))
            account.groups, account.home, account.exists = tuple(groups), home, exists

    def close(self) -> None:
        self._child.close()
