"""Uses redis-py's own Lock on command: one JSON value per line, in and out. Argument: the server's port."""

import json
import sys

import redis

server = redis.Redis(host="127.0.0.1", port=int(sys.argv[1]))
locks = {}


def acquire(order):
    lock = server.lock(order["name"], timeout=order["timeout"], sleep=0.005)
    locks[order["name"]] = lock
    return lock.acquire(blocking=order["wait"], blocking_timeout=120 if order["wait"] else None)


def release(order):
    try:
        locks[order["name"]].release()
        return "released"
    except redis.exceptions.LockError as error:
        return type(error).__name__


def owned(order):
    return locks[order["name"]].owned()


def count(order):
    """Increments a key repeatedly with GET and SET, which only a lock makes atomic."""
    lock = server.lock(order["name"], timeout=order["timeout"], sleep=0.005)
    for _ in range(order["rounds"]):
        if order["locked"]:
            lock.acquire()
        value = int(server.get(order["key"]) or 0)
        server.set(order["key"], value + 1)
        if order["locked"]:
            lock.release()
    return "done"


for line in sys.stdin:
    order = json.loads(line)
    print(json.dumps(globals()[order["do"]](order)), flush=True)
