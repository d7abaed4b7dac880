/** Throughput over time, with what is not known left out. */
import type { Report } from '../api/reports';
import type { Pool } from '../api/types';

/** What was in the `span_s` seconds until a time, in bytes per second. */
export interface Sample {
  time_s: number;
  span_s: number;
  read: number;
  written: number;
}

export interface Counters {
  time_ms: number;
  pools: Map<string, { uptime_ns: number; read: number; written: number }>;
}

/** Times of samples that follow each other differ by so much at most. */
const SLACK_S = 1.5;

/**
 * Bytes per second between two looks. A pool that came in between, or counts anew since it was
 * imported again, does not count this time.
 */
export function rates(before: Counters, now: Counters): { read: number; written: number } {
  const seconds = (now.time_ms - before.time_ms) / 1000;
  let read = 0;
  let written = 0;
  for (const [guid, at] of now.pools) {
    const then = before.pools.get(guid);
    if (!then || at.uptime_ns < then.uptime_ns || seconds <= 0) continue;
    read += (at.read - then.read) / seconds;
    written += (at.written - then.written) / seconds;
  }
  return { read: Math.max(0, read), written: Math.max(0, written) };
}

export function counters(pools: readonly Pool[], time_ms: number): Counters {
  return {
    time_ms,
    pools: new Map(
      pools.map(({ guid, uptime_ns, tree }) => [
        guid,
        { uptime_ns, read: tree.reads.bytes, written: tree.writes.bytes },
      ]),
    ),
  };
}

/** What the server's reports know of all pools together; the last period may not be over. */
export function fromReports(reports: readonly Report[], step_s: number, now_s: number): Sample[] {
  const all = new Map<number, Sample>();
  for (const { times_s, figures } of reports) {
    const of = (name: string): (number | null)[] =>
      figures.find(({ figure }) => figure === name)?.values ?? [];
    const [read, written] = [of('read-bytes'), of('written-bytes')];
    for (const [index, begin_s] of times_s.entries()) {
      const time_s = begin_s + step_s;
      if (time_s > now_s) continue;
      const sum = all.get(time_s) ?? { time_s, span_s: step_s, read: 0, written: 0 };
      sum.read += read[index] ?? 0;
      sum.written += written[index] ?? 0;
      all.set(time_s, sum);
    }
  }
  return [...all.values()].sort((a, b) => a.time_s - b.time_s);
}

/** Our own samples, and what reports know of the times that these say nothing of. */
export function filled(own: readonly Sample[], reported: readonly Sample[]): Sample[] {
  const begin = (sample: Sample): number => sample.time_s - sample.span_s;
  const missing = reported.filter(
    (one) => !own.some((other) => begin(one) < other.time_s && begin(other) < one.time_s),
  );
  return [...own, ...missing].sort((a, b) => a.time_s - b.time_s);
}

/** Times, and reads and writes at them, to draw: nothing joins samples between which there are none. */
export function drawn(
  samples: readonly Sample[],
): [number[], (number | null)[], (number | null)[]] {
  const out: [number[], (number | null)[], (number | null)[]] = [[], [], []];
  const put = (time_s: number, read: number | null, written: number | null): void => {
    out[0].push(time_s);
    out[1].push(read);
    out[2].push(written);
  };
  let last_s = -Infinity;
  for (const { time_s, span_s, read, written } of samples) {
    const begin_s = time_s - span_s;
    if (begin_s > last_s + SLACK_S) {
      if (last_s > 0) put(last_s + SLACK_S / 2, null, null);
      put(begin_s, read, written);
    }
    put(time_s, read, written);
    last_s = time_s;
  }
  return out;
}
