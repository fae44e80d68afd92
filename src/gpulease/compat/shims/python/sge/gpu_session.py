"""One agent in this terminal: python -m sge.gpu_session GPU_ID BASE_FOLDER."""

import sys

from sge import module


def main():  # type: () -> int
    sessions = module("sessions")
    return int(sessions.main(sessions.session))


if __name__ == "__main__":
    sys.exit(main())
