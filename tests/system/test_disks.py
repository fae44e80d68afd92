"""Which file system a folder is on, by the kernel's list of mounts."""

from __future__ import annotations

import pytest

from gpulease.system.host import filesystem, is_network

MOUNTS = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:21 / /proc rw - proc proc rw
30 22 0:40 / /home rw,relatime shared:5 master:2 - nfs4 server:/home rw,vers=4.2
31 30 8:2 / /home/local rw - xfs /dev/sdb1 rw
32 22 0:41 / /mnt/with\040space rw - fuse.sshfs host:/ rw,user_id=0
33 22 0:42 / /data rw - ext4 /dev/sdc1 rw
34 33 0:43 / /data rw - lustre mgs@tcp:/scratch rw
a line that is none
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/gpulease", "ext4"),
        ("/home/ann/.local/state/gpulease/host", "nfs4"),
        ("/home", "nfs4"),
        ("/homes/ann", "ext4"),
        ("/home/local/bob", "xfs"),
        ("/mnt/with space/x", "fuse.sshfs"),
        ("/data/x", "lustre"),
    ],
)
def test_the_innermost_and_last_mount_tells(path: str, kind: str) -> None:
    assert filesystem(path, MOUNTS) == kind


def test_without_a_mount_that_fits_nothing_is_known() -> None:
    assert filesystem("/x", "") == ""
    assert not is_network("")


def test_which_are_of_other_hosts() -> None:
    network = "nfs nfs4 cifs smb3 9p lustre gpfs beegfs ceph afs glusterfs fuse.sshfs fuse.glusterfs fuse.ceph fuse"
    assert [kind for kind in network.split() if not is_network(kind)] == []
    local = "ext4 xfs btrfs zfs tmpfs overlay fuseblk fuse.fuse-overlayfs ramfs f2fs fusectl"
    assert [kind for kind in local.split() if is_network(kind)] == []
