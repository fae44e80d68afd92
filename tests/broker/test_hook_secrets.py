"""`on-finish` may have a password in it: other users see it neither in the parameters nor among the processes."""

from __future__ import annotations

from support.accounts import SystemSite, system_site  # noqa: F401  # pytest finds the fixture here
from support.other_users import needs_root
from support.queue_site import QueueSite, fresh_queue  # noqa: F401  # pytest finds the fixture here
from support.site import words_of_all
from support.waiting import wait_until

SECRET = "s3cret-w0rd"


def test_the_hook_is_not_among_the_words_of_any_process(queue: QueueSite) -> None:
    gate, reply = queue.folder / "gate", queue.folder / "told"
    script = f": {SECRET}; echo begun >> {reply}; until [ -e {gate} ]; do sleep 0.01; done; cat >> {reply}"
    queue.ask("set", name="on-finish", value=script)
    queue.end(queue.submit("true"))
    wait_until(reply.exists)
    assert SECRET not in words_of_all()
    gate.touch()
    wait_until(lambda: '"complete"' in reply.read_text())


@needs_root
def test_the_hook_is_shown_to_those_who_may_set_it(system: SystemSite) -> None:
    system.ask("set", name="on-finish", value=f"https://example.org/{SECRET}")
    assert SECRET in str(system.ask("set"))
    seen = system.told(system.alice, "set")["ok"]["parameters"]
    assert SECRET not in str(seen)
    assert {row["name"]: row["value"] for row in seen}["on-finish"] == "(hidden)"
