#!/bin/sh
# Runs the README's two commands on a bare Debian 12 that has Python and make and nothing else.
#
#   tools/fresh_machine.sh root|user [COMMAND...]    # default: make demo, then make test
#
# It needs root and mmdebstrap. It makes the Debian in a temporary folder (or in FRESH_ROOT, which it keeps), clones this
# repository's HEAD into it, and runs there in mount, pid, uts and ipc namespaces of its own, as root or as user 1000.
set -eu
who=$1
shift
here=$(cd "$(dirname "$0")/.." && pwd)

if [ "${INSIDE_FRESH_MACHINE:-}" != yes ]; then
    [ "$(id -u)" = 0 ] || { echo "fresh_machine: only root can do this" >&2; exit 77; }
    root=${FRESH_ROOT:-$(mktemp -d /var/tmp/gpulease-fresh-XXXXXX)}
    [ -n "${FRESH_ROOT:-}" ] || trap 'rm -rf --one-file-system "$root"' EXIT
    echo "fresh_machine: a bare Debian in $root" >&2
    if [ ! -x "$root/usr/bin/make" ]; then
        mmdebstrap --quiet --variant=minbase --include=python3,make bookworm "$root"
    fi
    # how this machine reaches the registries
    cp -L /etc/resolv.conf "$root/etc/resolv.conf"
    [ ! -e /etc/ssl/certs/ca-certificates.crt ] || cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/this-machines-authorities.crt"
    case $who in root) home=/root ;; *) home=/home/user ;; esac
    rm -rf "$root$home/gpulease"
    mkdir -p "$root$home"
    git -c safe.directory='*' clone -q --no-hardlinks "$here" "$root$home/gpulease"
    if [ "$who" = user ]; then
        grep -q '^user:' "$root/etc/passwd" || chroot "$root" useradd --uid 1000 --home-dir /home/user --shell /bin/bash user
        chroot "$root" chown -R user: /home/user
    fi
    code=0
    INSIDE_FRESH_MACHINE=yes FRESH_ROOT=$root unshare --mount --pid --fork --kill-child --uts --ipc \
        sh "$here/tools/fresh_machine.sh" "$who" "$@" || code=$?
    exit $code
fi

root=$FRESH_ROOT
hostname fresh
mount --make-rprivate /
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for name in null zero full random urandom tty fuse; do
    [ ! -e "/dev/$name" ] || { touch "$root/dev/$name" && mount --bind "/dev/$name" "$root/dev/$name"; }
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
for name in fd:fd stdin:fd/0 stdout:fd/1 stderr:fd/2; do ln -s "/proc/self/${name#*:}" "$root/dev/${name%%:*}"; done
case $who in root) home=/root id=0 ;; *) home=/home/user id=1000 ;; esac
[ $# -gt 0 ] || set -- sh -c 'make demo && make test'
passed="PIP_CERT=/etc/this-machines-authorities.crt"
for name in PIP_INDEX_URL PIP_DEFAULT_TIMEOUT http_proxy https_proxy no_proxy; do
    value=$(printenv "$name") && passed="$passed $name=$value"
done
# The Debian becomes the root of the namespace, not of the process alone (chroot): tests enter namespaces with nsenter.
mkdir -p "$root/.outside"
cd "$root"
pivot_root . .outside
umount --lazy /.outside
# shellcheck disable=SC2086
exec env -i $passed PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=$home TERM=dumb \
    chroot --userspec="$id:$id" / sh -c 'cd "$HOME/gpulease" && exec "$@"' sh "$@"
