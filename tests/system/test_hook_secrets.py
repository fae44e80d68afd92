"""`on-finish` may have a password in it: other users see it neither in the parameters nor among the processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.other_users import as_user, needs_root, two_users
from support.queue_site import QueueSite, fresh_queue  # noqa: F401  # pytest finds the fixture here
from support.waiting import wait_until

SECRET = "s3cret-w0rd"


def words_of_all() -> str:
    texts = []
    for folder in Path("/proc").iterdir():
        try:
            texts.append((folder / "cmdline").read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return "\n".join(texts)


def test_the_hook_is_not_among_the_words_of_any_process(queue: QueueSite) -> None:
    gate, told = queue.folder / "gate", queue.folder / "told"
    script = f": {SECRET}; echo begun >> {told}; until [ -e {gate} ]; do sleep 0.01; done; cat >> {told}"
    queue.ask("set", name="on-finish", value=script)
    queue.end(queue.submit("true"))
    wait_until(told.exists)
    assert SECRET not in words_of_all()
    gate.touch()
    wait_until(lambda: '"complete"' in told.read_text())


@needs_root
def test_the_hook_is_shown_to_those_who_may_set_it() -> None:
    with QueueSiteForAll() as site:
        site.ask("set", name="on-finish", value=f"https://example.org/{SECRET}")
        assert SECRET in str(site.ask("set"))

        def ask() -> Any:
            with site.raw() as raw:
                return raw.ask("set")

        seen = as_user(two_users()[0], ask)["ok"]["parameters"]
        assert SECRET not in str(seen)
        assert {row["name"]: row["value"] for row in seen}["on-finish"] == "(hidden)"


class QueueSiteForAll(QueueSite):
    """With a system broker."""

    def __init__(self) -> None:
        super().__init__(shared=True)

    def __enter__(self) -> QueueSiteForAll:
        self.start("broker", "--system")
        wait_until(self.broker_pid)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
