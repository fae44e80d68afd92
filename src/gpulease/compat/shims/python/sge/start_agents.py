"""Agents in the background: python -m sge.start_agents NUMBER_OF_AGENTS BASE_FOLDER."""

import sys

from sge import module


def main():  # type: () -> int
    sessions = module("sessions")
    return int(sessions.main(sessions.start_all))


if __name__ == "__main__":
    sys.exit(main())
