"""The broker's side of the child that runs the administrator's order: one question at a time, each with a deadline.

The question lies in a file without a name, however long it is.
"""

from __future__ import annotations

import json
import os
import select
from collections.abc import Callable

from gpulease.broker.child import Child
from gpulease.broker.core.events import OrderAnswered
from gpulease.broker.core.instructions import AskForOrder
from gpulease.errors import GpuleaseError

START = 15.0  # seconds in which the function and what it imports are loaded
ANSWER = 2.0  # seconds for each answer


class OrderChild(Child):
    def __init__(self, poll: select.epoll, tell: Callable[[OrderAnswered], None]) -> None:
        self._tell, self._function = tell, ""
        self._question = os.memfd_create("gpulease-order")
        super().__init__(poll, ())

    def ask(self, one: AskForOrder, now: float) -> None:
        if one.function != self._function:
            self.due = None
            self.close()
            self._function = one.function
            self._words = ["gpulease.broker.children.order", one.function, str(self._question)]
        if not one.waiting:
            return
        text = json.dumps({"now": one.now, "waiting": one.waiting}).encode()
        self.due = now + (ANSWER if self.running else START)
        try:
            os.ftruncate(self._question, 0)
            os.pwrite(self._question, text, 0)
            if not self.running:
                self.start([self._question])
            self.send(b"%d\n" % len(text), self.due)
        except OSError as error:
            self._failed(f"it could not be asked: {error.strerror}")

    def answered(self, now: float) -> None:
        try:
            messages = self.messages()
        except GpuleaseError as error:
            return self._failed(error.what)
        if messages is None:
            return self._failed("its process ended")
        for message in messages:
            if self.due is not None and "loaded" in message:
                self.due = now + ANSWER
            elif self.due is not None:
                self.due = None
                self._tell(OrderAnswered(self._function, message.get("order"), message.get("trouble")))
        return None

    def overdue(self) -> None:
        self._failed("it did not answer in time")

    def _failed(self, trouble: str) -> None:
        asked, self.due = self.due is not None, None
        self.close()
        if asked:
            self._tell(OrderAnswered(self._function, None, trouble))
