"""Requests and responses over many connections at once, by callers of several kinds.

The programs run with ``python -c``.  A request is 100 bytes, and its first 8 are the size of the response.

SERVER_THREADS PORT CONNECTIONS     a thread for each connection, blocking calls
SERVER_EPOLL PORT CONNECTIONS       one thread, epoll, sockets that do not block
CLIENT HOST PORT CONNECTIONS CALLER PLAN     CALLER: epoll, threads (blocking) or timeouts (poll before each call)

PLAN is a list in JSON, or a file with it: [second, [connections], bytes], see `poisson`, `incast` and `search_mix`.
"""

from __future__ import annotations

import json
import random
from bisect import bisect
from itertools import pairwise

LISTEN = """
import selectors, socket, struct, sys, threading
s = socket.create_server(("", int(sys.argv[1])), backlog=512)
print("listening", flush=True)
"""
SERVER_THREADS = (
    LISTEN
    + """
def whole(c):
    data = b""
    while len(data) < 100:
        more = c.recv(100 - len(data))
        if not more:
            return None
        data += more
    return data
def one(c):
    while (data := whole(c)) is not None:
        c.sendall(bytes(struct.unpack_from(">Q", data)[0]))
    c.close()
threads = []
for _ in range(int(sys.argv[2])):
    c, _ = s.accept()
    threads.append(threading.Thread(target=one, args=(c,)))
    threads[-1].start()
for t in threads:
    t.join()
"""
)
SERVER_EPOLL = (
    LISTEN
    + """
poll, left, state = selectors.EpollSelector(), int(sys.argv[2]), {}
poll.register(s, selectors.EVENT_READ)
def send(c):
    while state[c][1]:
        try:
            state[c][1] -= c.send(bytes(min(state[c][1], 1 << 16)))
        except BlockingIOError:
            poll.modify(c, selectors.EVENT_READ | selectors.EVENT_WRITE)
            return
    poll.modify(c, selectors.EVENT_READ)
while left:
    for key, _ in poll.select():
        c = key.fileobj
        if c is s:
            c = s.accept()[0]
            c.setblocking(False)
            state[c] = [b"", 0]
            poll.register(c, selectors.EVENT_READ)
            continue
        try:
            data = c.recv(65536)
        except BlockingIOError:
            data = None
        if data == b"":
            poll.unregister(c)
            c.close()
            left -= 1
            continue
        state[c][0] += data or b""
        while len(state[c][0]) >= 100:
            state[c][1] += struct.unpack_from(">Q", state[c][0])[0]
            state[c][0] = state[c][0][100:]
        send(c)
"""
)
CLIENT = """
import json, selectors, socket, struct, sys, threading, time
host, port, many, caller = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
plan = json.loads(sys.argv[5] if sys.argv[5][0] == "[" else open(sys.argv[5]).read())
connections = [socket.create_connection((host, port)) for _ in range(many)]
queues = [[(at, size) for at, who, size in plan if n in who] for n in range(many)]
begin = time.monotonic()
def ask(c, size):
    c.sendall(struct.pack(">Q", size) + bytes(92))
def wait(at):
    time.sleep(max(at - (time.monotonic() - begin), 0))
def read(c, size):
    while size:
        size -= len(c.recv(min(size, 65536)))
def one(c, queue):
    for at, size in queue:
        wait(at)
        ask(c, size)
        read(c, size)
    c.close()
if caller == "epoll":
    poll, left = selectors.EpollSelector(), {}
    for n, c in enumerate(connections):
        c.setblocking(False)
        left[c] = sum(size for _, size in queues[n])
        poll.register(c, selectors.EVENT_READ)
        if not left[c]:
            c.close()
    todo = [(at, n, size) for at, who, size in plan for n in who]
    while todo or any(left.values()):
        while todo and todo[0][0] <= time.monotonic() - begin:
            ask(connections[todo[0][1]], todo.pop(0)[2])
        ready = poll.select(max(todo[0][0] - (time.monotonic() - begin), 0) if todo else 10)
        for key, _ in ready:
            c = key.fileobj
            left[c] -= len(c.recv(65536))
            if not left[c]:
                poll.unregister(c)
                c.close()
else:
    for c in connections:
        c.settimeout(30 if caller == "timeouts" else None)
    threads = [threading.Thread(target=one, args=pair) for pair in zip(connections, queues)]
    for t in threads: t.start()
    for t in threads: t.join()
"""

# Web search (the DCTCP paper, as section 5.2 of the DETER paper uses it): kB, share of responses up to this size.
SEARCH: tuple[tuple[int, float], ...] = (
    (6, 0.15),
    (13, 0.2),
    (19, 0.3),
    (33, 0.4),
    (53, 0.53),
    (133, 0.6),
    (667, 0.7),
    (1333, 0.8),
    (3333, 0.9),
)
SEARCH += ((6667, 0.97), (20000, 1.0))
INCAST_SHARE = 0.2  # of the bytes

Plan = list[tuple[float, list[int], int]]


def search_size(chance: random.Random, scale: float) -> int:
    """Bytes of a response, between two points of the distribution, times ``scale``."""
    share = chance.random()
    place = bisect([s for _, s in SEARCH], share)
    low = SEARCH[place - 1] if place else (1, 0.0)
    high = SEARCH[min(place, len(SEARCH) - 1)]
    part = (share - low[1]) / max(high[1] - low[1], 1e-9)
    return max(int((low[0] + part * (high[0] - low[0])) * 1000 * scale), 1)


def mean_size(scale: float) -> float:
    """Bytes of a response on average, times ``scale``."""
    points = [(1, 0.0), *SEARCH]
    return sum((b[1] - a[1]) * (a[0] + b[0]) / 2 for a, b in pairwise(points)) * 1000 * scale


def poisson(connections: int, requests: int, rate: float, size: int, seed: int = 1) -> Plan:
    """Requests at ``rate`` a second, each on a random connection, but one at least on each."""
    chance, now = random.Random(seed), 0.0
    order = [n % connections for n in range(requests)]
    chance.shuffle(order)
    plan: Plan = []
    for n in order:
        now += chance.expovariate(rate)
        plan.append((now, [n], size))
    return plan


def incast(connections: int, rounds: int, size: int, pause: float = 0.1) -> Plan:
    """All connections are asked at once, ``rounds`` times."""
    return [(n * pause, list(range(connections)), size) for n in range(rounds)]


def search_mix(connections: int, seconds: float, load: float, scale: float, seed: int = 1) -> Plan:
    """Section 5.2: responses of web search at random times, and a share of the bytes asked of 10 at once.

    ``load``: bytes a second; sizes are times ``scale``.
    """
    chance, now = random.Random(seed), 0.0
    together = INCAST_SHARE / 10 / (1 - INCAST_SHARE)  # share of requests
    rate = load / (mean_size(scale) * (1 + 9 * together))
    plan: Plan = []
    while (now := now + chance.expovariate(rate)) < seconds:
        who = chance.sample(range(connections), 10) if chance.random() < together else [chance.randrange(connections)]
        plan.append((now, who, search_size(chance, scale)))
    used = {n for _, who, _ in plan for n in who}
    return sorted([*plan, *((0.0, [n], 1000) for n in range(connections) if n not in used)])


def written(plan: Plan) -> str:
    """A plan as an argument of CLIENT."""
    return json.dumps(plan)
