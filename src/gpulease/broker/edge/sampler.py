"""The broker's side of the sampler child: questions one at a time, each with a deadline.

A driver that hangs costs the child its life and the broker nothing but a fresh sample.
"""

from __future__ import annotations

import select

from gpulease.broker.child import Child
from gpulease.broker.children.sampler import LARGEST
from gpulease.errors import DriverError, DriverHangs, GpuleaseError
from gpulease.errors import by_code as error_by_code
from gpulease.model.quantities import pause_after
from gpulease.protocol.wire import Message

ATTEMPTS = 4  # children that are started for one question, one after the other
PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds before a driver that hung is asked again


class SamplerChild:
    def __init__(self, poll: select.epoll, deadline: float) -> None:
        self.seconds = deadline
        self._child = Child(poll, ["gpulease.broker.children.sampler"], LARGEST)
        self._questions: list[str] = []  # the first one is under way
        self._failures = 0
        self._ends = 0  # children that ended over the question under way
        self._not_before = 0.0
        self._not_started: GpuleaseError | None = None
        self.trouble: GpuleaseError = DriverHangs("The GPU driver does not answer.")  # the last one

    @property
    def descriptor(self) -> int:
        return self._child.descriptor

    @property
    def due(self) -> float | None:
        """When the question under way is overdue, on the clock that `ask` was given."""
        return self._child.due

    def may_ask(self, now: float) -> bool:
        """False for a while after a driver that hung: it most likely still does."""
        return now >= self._not_before

    def ask(self, question: str, now: float) -> None:
        if question == "all" and question in self._questions[1:]:
            return
        self._questions.append(question)
        if len(self._questions) == 1:
            self._send(now)

    def read(self, now: float) -> list[Message | GpuleaseError]:
        """Answers that have come in. The child's unexpected end is an answer too."""
        messages = self._child.messages()
        if messages is None:
            return self._child_ended(now)
        answers: list[Message | GpuleaseError] = []
        for message in messages:
            self._questions.pop(0)
            self._failures = self._ends = 0
            answers.append(_judge(message))
        if answers:  # else a part of a long one
            self._child.due = None
            if self._questions:
                self._send(now)
        return answers

    def _child_ended(self, now: float) -> list[Message | GpuleaseError]:
        """Another one is asked the same: it may have been killed. If one after the other ends, something is wrong."""
        if self._questions and self._ends < ATTEMPTS:
            self._ends += 1
            self.close()
            self._send(now)
            return []
        what = "The process that reads the GPU driver keeps ending unexpectedly."
        return [self._failed(now, DriverError(what, "See the broker's log: the driver's library may be damaged."))]

    def overdue(self, now: float) -> GpuleaseError:
        """Give up on the question under way."""
        hangs = DriverHangs(f"The GPU driver did not answer within {self.seconds:g} s.")
        trouble, self._not_started = self._not_started or hangs, None
        return self._failed(now, trouble)

    def close(self) -> None:
        self._child.close()

    def _send(self, now: float) -> None:
        try:
            self._child.send(self._questions[0].encode() + b"\n", now + self.seconds)
        except OSError as error:
            what = f"The process that reads the driver cannot be started: {error.strerror}."
            self._not_started, self._child.due = DriverError(what), now

    def _failed(self, now: float, trouble: GpuleaseError) -> GpuleaseError:
        self.close()
        self._questions.clear()
        self._child.due, self._ends = None, 0
        self._failures += 1
        self.trouble = trouble
        self._not_before = now + pause_after(self._failures, PAUSE, LONGEST_PAUSE)
        return trouble


def _judge(message: Message) -> Message | GpuleaseError:
    error = message.get("error")
    return (
        message if error is None else error_by_code(error["code"], error["what"], error["next_step"], error["fields"])
    )
