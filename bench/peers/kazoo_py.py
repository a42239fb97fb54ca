"""The hand-offs of leasehold's ZooKeeper bench on kazoo's Lock.

`kazoo_py.py SERVERS CLIENTS SESSION_MS` opens this many clients, each with its own thread (and with the threads of kazoo itself).
It reads commands from standard input: after "go", all clients acquire and release one lock repeatedly, until "stop"; "tally" only
reports. It prints one line of JSON at its start and after each command. All threads share one interpreter, as in any Python program.
"""

import json
import sys
import threading

from kazoo.client import KazooClient

PATH = "/kazoo/contest"


class Turns:
    def __init__(self, servers, clients, session):
        self.locks = []
        for index in range(clients):
            client = KazooClient(hosts=servers, timeout=session / 1000)
            client.start()
            self.locks.append(client.Lock(PATH, str(index)))
        self.threads, self.stopped = [], False
        # Written only by the holder of the lock, if the lock excludes others.
        self.hand_offs, self.last = 0, None

    def work(self, index):
        while not self.stopped:
            with self.locks[index]:
                self.hand_offs += self.last != index
                self.last = index

    def go(self):
        self.stopped = False
        self.threads = [threading.Thread(target=self.work, args=(index,)) for index in range(len(self.locks))]
        for thread in self.threads:
            thread.start()

    def stop(self):
        self.stopped = True
        for thread in self.threads:
            thread.join()

    def tally(self):
        pass

    def report(self):
        print(json.dumps({"hand_offs": self.hand_offs}), flush=True)


if __name__ == "__main__":
    _, servers, clients, session = sys.argv
    turns = Turns(servers, int(clients), int(session))
    turns.report()
    for line in sys.stdin:
        {"go": turns.go, "stop": turns.stop, "tally": turns.tally}[line.strip()]()
        turns.report()
