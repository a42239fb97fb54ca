// The cycle of leasehold's Redlock bench on npm's redlock with ioredis.
//
// `cycle.mjs URL...`: for each line on standard input, a number, it acquires and releases one lock that many times, and prints one
// line of JSON. It has redlock's default settings; there is no contention, so its pauses between retries do not matter.

import { createRequire } from "node:module";
import { createInterface } from "node:readline";

// The packages are installed in the folder in which this script is started.
const require = createRequire(`${process.cwd()}/`);
const { default: Redis } = require("ioredis");
const { default: Redlock } = require("redlock");

const TTL = 30_000;
const clients = process.argv.slice(2).map((url) => new Redis(url));
const redlock = new Redlock(clients);

for await (const line of createInterface({ input: process.stdin })) {
  const count = Number(line);
  const times = [];
  const used = process.cpuUsage();
  const start = process.hrtime.bigint();
  for (let i = 0; i < count; i++) {
    const before = process.hrtime.bigint();
    const lock = await redlock.acquire(["peer-cycle-node"], TTL);
    await lock.release();
    times.push(Number(process.hrtime.bigint() - before));
  }
  const total = Number(process.hrtime.bigint() - start);
  const { user, system } = process.cpuUsage(used);
  times.sort((a, b) => a - b);
  const said = { p50_ns: times[count >> 1], total_ns: total, cpu_ns: (user + system) * 1000 };
  console.log(JSON.stringify(said));
}
for (const client of clients) client.disconnect();
