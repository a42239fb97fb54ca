"""The cycle of leasehold's Redlock bench on pottery's Redlock.

`redlock_py.py URL...`: for each line on standard input, a number, it acquires and releases one lock that many times, and prints one
line of JSON. It has pottery's default settings; there is no contention, so its pauses between retries do not matter.
"""

import json
import statistics
import sys
import time

from pottery import Redlock
from redis import Redis

TTL = 30


def measure(lock, count):
    times = []
    used, start = time.process_time_ns(), time.monotonic_ns()
    for _ in range(count):
        before = time.monotonic_ns()
        with lock:
            pass
        times.append(time.monotonic_ns() - before)
    total, used = time.monotonic_ns() - start, time.process_time_ns() - used
    return {"p50_ns": int(statistics.median(times)), "total_ns": total, "cpu_ns": used}


if __name__ == "__main__":
    masters = {Redis.from_url(url) for url in sys.argv[1:]}
    lock = Redlock(key="peer-cycle-py", masters=masters, auto_release_time=TTL)
    for line in sys.stdin:
        print(json.dumps(measure(lock, int(line))), flush=True)
