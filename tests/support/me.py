"""Who runs these tests."""

from __future__ import annotations

import grp
import os
import pwd

USER = pwd.getpwuid(os.geteuid()).pw_name
GROUP = grp.getgrgid(os.getegid()).gr_name
