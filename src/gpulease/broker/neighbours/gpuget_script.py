"""The one script that runs inside Redis: gpuget's lists made to agree with what is held here, in one step.

gpuget keeps a list of idle GPUs, and whoever pops one has it. What we took stands in a list of our own, so that a GPU
is in one of the two at every instant, whoever dies. The script is told what is to stay ours, and answers with what is:

- what is to stay and is idle is taken; what was ours and is not to stay goes back to the idle ones;
- what a blocked connection brought and nobody has seen yet stays, until it is said what becomes of it;
- what somebody else put back and another took meanwhile (`--force`, `--release` of a GPU that is not theirs) is theirs;
- while the lists are being made anew (`--force` is many steps), nothing goes back: the new lists will have it. That
  they are new is known by a field of ours that is missing in `GPU_INIT`.

A turn, a random word, is written down by each process that speaks for a broker. What a former one sent, and Redis reads
late, is refused. The turn is gone with everything else when the database is emptied, which is how that is noticed.
The count of calls shows whether the process that has the turn is alive.

Everybody on the network may write to a Redis. What is no number of a GPU is not read, what is shown to people is cut
and printable, and a key beside the lists that has a wrong type changes nothing about which list a GPU is in.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

# gpuget's purge frees the GPUs of processes that it cannot signal: also those of other users, and of other hosts. This
# is no process's number. Signal 0 to it goes to the purge's own group, and so never fails. gpuget itself writes one
# digit, so that this form tells who wrote last.
MARK = "00"

RECONCILE = """
local idle, managed, events, init, ours, notes = unpack(KEYS)
local turn, hash, now, pid = unpack(ARGV, 1, 4)
local call = redis.call
local speaks = call('HGET', notes, 'turn')
if not speaks then return redis.error_reply('TURN is gone') end
if speaks ~= turn then
  return redis.error_reply('TURN of ' .. speaks .. ' at ' .. (call('HGET', notes, 'count') or ''))
end
call('HINCRBY', notes, 'count', 1)

local function members(list)
  local found = {}
  for _, gpu in ipairs(call('LRANGE', list, 0, 9999)) do
    if gpu == '0' or string.match(gpu, '^[1-9]%d?%d?$') then
      found[gpu] = true
    elseif list == ours then
      call('LREM', ours, 0, gpu)
    end
  end
  return found
end
local function names(set)
  local found = {}
  for gpu in pairs(set) do found[#found + 1] = gpu end
  return found
end
local function field(gpu, name)
  local found = redis.pcall('HGET', hash .. gpu, name)
  return type(found) == 'string' and found or nil
end
local function is_marked(gpu)
  local kind = call('TYPE', hash .. gpu).ok
  return field(gpu, 'PID') == '00' or (kind ~= 'hash' and kind ~= 'none')
end
local function pid_of(gpu)
  local found = field(gpu, 'PID') or ''
  return #found <= 10 and string.match(found, '^%d+$') or ''
end
local function time_of(gpu)
  return (string.gsub(string.sub(field(gpu, 'TIME') or '', 1, 40), '[^ -~]', '?'))
end
local is_idle, is_managed, stays = members(idle), members(managed), {}
for place = 5, #ARGV do stays[ARGV[place]] = true end

local began = call('HGET', init, 'TIME')
local known = call('HEXISTS', notes, 'began') == 1
local torn = known and not began

local function say(gpu, what)
  redis.pcall('LPUSH', events, now .. ': GPU ' .. gpu .. ' ' .. what .. ' by PID ' .. pid .. '.')
end
local function mark(gpu)
  call('DEL', hash .. gpu)
  call('HSET', hash .. gpu, 'PID', '00', 'TIME', now)
  call('HSET', notes, 'GPU' .. gpu, torn and 'anew' or now)
end
local function forget(gpu)
  call('LREM', ours, 0, gpu)
  call('HDEL', notes, 'GPU' .. gpu)
end
local function take(gpu)
  call('LREM', idle, 0, gpu)
  is_idle[gpu] = nil
  call('LREM', ours, 0, gpu)
  call('LPUSH', ours, gpu)
  mark(gpu)
  say(gpu, 'acquired')
end
local function give(gpu)
  if is_managed[gpu] then
    call('LPUSH', idle, gpu)
    is_idle[gpu] = true
  end
  forget(gpu)
  call('DEL', hash .. gpu)
  if is_managed[gpu] then say(gpu, 'released') end
end

if began and call('HEXISTS', init, ours) == 0 then
  for gpu in pairs(members(ours)) do
    local anew = call('HGET', notes, 'GPU' .. gpu) == 'anew'
    if known and not anew and is_managed[gpu] and not is_idle[gpu] then forget(gpu) end
    if anew then call('HSET', notes, 'GPU' .. gpu, now) end
  end
  for gpu in pairs(is_idle) do call('DEL', hash .. gpu) end
  call('HSET', init, ours, now)
  call('HSET', notes, 'began', now)
end

for gpu in pairs(members(ours)) do
  local seen = call('HEXISTS', notes, 'GPU' .. gpu) == 1
  if is_idle[gpu] then
    if stays[gpu] then take(gpu) else forget(gpu) call('DEL', hash .. gpu) end
  elseif not seen then
    mark(gpu)
    say(gpu, 'acquired')
  elseif not torn and not is_marked(gpu) then
    forget(gpu)
  elseif not torn and not stays[gpu] then
    give(gpu)
  end
end
for gpu in pairs(stays) do
  if is_idle[gpu] then take(gpu) end
end

local mine, held = members(ours), {}
for gpu in pairs(is_managed) do
  if not is_idle[gpu] and not mine[gpu] then
    held[#held + 1] = {gpu, pid_of(gpu), time_of(gpu)}
  end
end
return {names(is_idle), names(is_managed), names(mine), held, began and 'began' or ''}
"""


class Keys(NamedTuple):
    """The names of gpuget's lists, and of ours beside them."""

    idle: str
    managed: str
    events: str
    init: str
    ours: str
    notes: str

    @classmethod
    def of(cls, prefix: str, broker: str) -> Keys:
        own = f"{prefix}_GPULEASE:{broker}"
        return cls(f"{prefix}_IDLE", f"{prefix}_MANAGED", f"{prefix}_EVENTS", f"{prefix}_INIT", own, f"{own}:notes")


class Taker(NamedTuple):
    """The user who took a GPU with GPU.py, as far as it wrote that down."""

    pid: int | None = None
    since: str = ""


class Picture(NamedTuple):
    """What the lists say after a step."""

    idle: frozenset[int]
    managed: frozenset[int]
    ours: frozenset[int]
    held: dict[int, Taker]
    initialised: bool  # else gpuget has not made its lists, or is making them

    @classmethod
    def of(cls, answer: list[Any]) -> Picture:
        idle, managed, ours = (frozenset(map(int, one)) for one in answer[:3])
        held = {int(gpu): _taker(pid, since) for gpu, pid, since in answer[3]}
        return cls(idle, managed, ours, held, bool(answer[4]))


def _taker(pid: str, since: str) -> Taker:
    """A GPU that left the list a moment ago has no PID yet, or that of its former holder."""
    return Taker(int(pid) if pid and pid != MARK else None, since)


# -------------------------------------------------------------------- what stays ours

CONSIDERED = 0.5  # seconds for the broker to say whether it wants a GPU that came to us
MOST = 32  # connections that wait in gpuget's line


class Share(NamedTuple):
    kept: frozenset[int] = frozenset()  # held by leases, or claimed for one
    wanted: frozenset[int] = frozenset()  # what the broker's line would get next, if it were free
    claimed: frozenset[int] = frozenset()  # since the broker last said what it wants; it wants less by these
    offers: tuple[tuple[int, float], ...] = ()  # what came to us and is nobody's yet, and when

    def told(self, kept: Iterable[int], wanted: Iterable[int]) -> Share:
        """All of it, as the broker says it each time."""
        return self._replace(kept=frozenset(kept), wanted=frozenset(wanted), claimed=frozenset())

    def claim(self, gpus: Iterable[int]) -> Share:
        return self._replace(kept=self.kept | frozenset(gpus), claimed=self.claimed | frozenset(gpus))

    def give(self, gpus: Iterable[int]) -> Share:
        return self._replace(kept=self.kept - frozenset(gpus), claimed=self.claimed - frozenset(gpus))

    def alone(self) -> Share:
        """Nobody is left to want anything: what was offered goes back."""
        return self._replace(wanted=frozenset(), offers=())

    def saw(self, picture: Picture, now: float) -> Share:
        """What is ours and not kept was brought by a connection that waited."""
        before = dict(self.offers)
        return self._replace(offers=tuple((gpu, before.get(gpu, now)) for gpu in sorted(picture.ours - self.kept)))

    def stay(self, now: float) -> frozenset[int]:
        return self.kept | {gpu for gpu, since in self.offers if gpu in self.wanted or now < since + CONSIDERED}

    def due(self) -> float | None:
        """When the next offer goes back."""
        return min((since + CONSIDERED for gpu, since in self.offers if gpu not in self.wanted), default=None)

    def waiting(self, picture: Picture) -> int:
        """How many connections wait. None while something is idle: what is wanted of that is claimed by its number."""
        if picture.idle or not picture.held:
            return 0
        got = len(self.offers) + len(self.claimed - self.wanted)
        return min(MOST, max(0, len(self.wanted - self.kept) - got))
