"""The loads of leasehold's Redis bench on redis-py's Lock, with threads.

`redis_py.py URL LOAD SECONDS` runs one load and prints one line of JSON. The bench starts it once for each load, and counts the
requests that the server receives meanwhile. The lock is used as its documentation shows: with a TTL of 30 s, an unlimited wait,
and a poll every 0.1 s.
"""

import json
import statistics
import sys
import threading
import time

import redis

TASKS = 64


def lock(client, name):
    return client.lock(name, timeout=30, blocking=True)


def all_at_once(work):
    """Runs work(index) on 64 threads and returns how long that took."""
    threads = [threading.Thread(target=work, args=(index,)) for index in range(TASKS)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.monotonic() - start


def one(url, seconds):
    client = redis.Redis.from_url(url)
    cycles = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        start = time.monotonic_ns()
        with lock(client, "peer-one"):
            pass
        cycles.append(time.monotonic_ns() - start)
    return {"p50_ns": int(statistics.median(cycles))}


def many(url, seconds):
    client = redis.Redis.from_url(url)
    cycles = [0] * TASKS
    end = time.monotonic() + seconds

    def work(index):
        while time.monotonic() < end:
            with lock(client, f"peer-many-{index}"):
                cycles[index] += 1

    taken = all_at_once(work)
    return {"per_second": sum(cycles) / taken}


def turns(url, seconds):
    client = redis.Redis.from_url(url)
    served, changes, last = [0] * TASKS, [0], [None]
    end = time.monotonic() + seconds

    def work(index):
        while time.monotonic() < end:
            with lock(client, "peer-turns"):
                served[index] += 1
                changes[0] += last[0] != index
                last[0] = index

    taken = all_at_once(work)
    return {
        "per_second": changes[0] / taken,
        "hand_offs": changes[0],
        "turns": sum(served),
        "most": max(served),
        "least": min(served),
    }


def handover(url, seconds):
    mine, other = redis.Redis.from_url(url), redis.Redis.from_url(url)
    waits, taken = [], []

    def wait():
        with lock(other, "peer-handover"):
            taken.append(time.monotonic_ns())

    end = time.monotonic() + seconds
    while time.monotonic() < end or not waits:
        held = lock(mine, "peer-handover")
        held.acquire()
        waiter = threading.Thread(target=wait)
        waiter.start()
        # The delays vary, so that a waiter that polls is met at all points of its pause.
        time.sleep(0.02 + len(waits) * 37 % 100 / 1000)
        start = time.monotonic_ns()
        held.release()
        waiter.join()
        waits.append(max(0, taken[-1] - start))
    return {"p50_ns": int(statistics.median(waits))}


if __name__ == "__main__":
    _, url, load, seconds = sys.argv
    loads = {"one": one, "many": many, "turns": turns, "handover": handover}
    print(json.dumps(loads[load](url, float(seconds))))
