import { describe, expect, it } from 'vitest';

import type { BenchKept, BenchLook, BenchMeasured, BenchReport, BenchTest } from '../api/bench';
import {
  bestOf,
  curveOf,
  curvesOf,
  fieldsOf,
  measure,
  milliseconds,
  nameOf,
  newForm,
  noteWords,
  parseBlock,
  parseDepths,
  parseHours,
  ratio,
  rowOf,
  stepWords,
  streamWords,
  sureness,
  wantedOf,
  willOf,
} from './bench';

const TEST: BenchTest = {
  name: 'random reads of 4K',
  random_percent: 100,
  reads_percent: 100,
  block_bytes: 4096,
  depth: 9,
  workers: 1,
  is_cached: false,
  is_whole: false,
};

function measured(of: Partial<BenchMeasured> = {}): BenchMeasured {
  return {
    ...TEST,
    warm_up_seconds: 4,
    is_steady: true,
    iops: 12_345.6,
    iops_error: 200,
    rate: 50_567_577.6,
    reads: { iops: 12_345.6, rate: 50_567_577.6, mean_ms: 0.7291, p99_ms: 2.5 },
    writes: null,
    planned_iops: null,
    before: [{ at_seconds: 1, iops: 10 }],
    points: [
      { at_seconds: 1, iops: 20 },
      { at_seconds: 2, iops: 30 },
    ],
    ...of,
  };
}

function report(of: Partial<BenchReport> = {}): BenchReport {
  return {
    fio: 'fio-3.33',
    began: 1_795_965_488,
    target: 'tank',
    profile: 'iometer',
    area: { size_bytes: 1 << 30 },
    notes: [],
    tests: [],
    jobs: [],
    ...of,
  };
}

describe('what is wanted', () => {
  it('is as usual where nothing is typed', () => {
    expect(wantedOf(newForm('tank'))).toEqual({
      dataset: 'tank',
      profile: 'iometer',
      is_volume: false,
      block_bytes: null,
      compression: null,
      size_bytes: null,
      depths: [],
      seconds: null,
      warm_up_seconds: null,
      total_seconds: null,
      stream_rate: null,
    });
    expect(wantedOf(newForm(''))).toBeUndefined();
  });

  it('is what is typed', () => {
    const form = { ...newForm('tank/a'), size: '2G', depths: '1, 4 16', block: '16K' };
    const wanted = wantedOf({ ...form, seconds: '10', warmUp: '0', isVolume: true });
    expect(wanted).toMatchObject({
      size_bytes: 2 * 2 ** 30,
      depths: [1, 4, 16],
      block_bytes: 16_384,
      seconds: 10,
      warm_up_seconds: 0,
      is_volume: true,
    });
  });

  it('is nothing while something is not understood', () => {
    const form = newForm('tank');
    for (const wrong of [
      { size: '1K' },
      { depths: '0' },
      { depths: '2000' },
      { block: '3K' },
      { seconds: '0' },
      { warmUp: '4000' },
    ]) {
      expect(wantedOf({ ...form, ...wrong }), JSON.stringify(wrong)).toBeUndefined();
    }
    // What does not count for these loads is not looked at.
    expect(wantedOf({ ...form, profile: 'bonnie', depths: '0' })).toMatchObject({ depths: [] });
    expect(wantedOf({ ...form, profile: 'warm-up', seconds: '0', hours: '0.5' })).toMatchObject({
      seconds: null,
      total_seconds: 1800,
    });
    expect(wantedOf({ ...form, profile: 'streams', rate: 'fast' })).toBeUndefined();
    expect(wantedOf({ ...form, profile: 'streams', rate: '10Mbit' })).toMatchObject({
      stream_rate: 1_250_000,
    });
    // A number of streams is tried for less long than a load is measured.
    expect(wantedOf({ ...form, seconds: '3600' })).toMatchObject({ seconds: 3600 });
    expect(wantedOf({ ...form, profile: 'streams', seconds: '601' })).toBeUndefined();
    expect(wantedOf({ ...form, profile: 'streams', seconds: '600' })).toMatchObject({
      seconds: 600,
    });
  });

  it('has bounds', () => {
    expect(parseDepths('')).toEqual([]);
    expect(parseDepths(Array.from({ length: 17 }, () => '1').join(' '))).toBeUndefined();
    expect(parseBlock('16M')).toBe(16 << 20);
    expect(parseBlock('32M')).toBeUndefined();
    expect(parseHours('48')).toBe(172_800);
    expect(parseHours('49')).toBeUndefined();
    expect(parseHours('0')).toBeUndefined();
    expect([...fieldsOf('streams')]).toEqual(['seconds', 'rate']);
  });

  it('is asked of the API in a terminal, too', () => {
    const { command, body } = measure({ dataset: 'tank', profile: 'sio' });
    expect(body).toEqual({ wanted: { dataset: 'tank', profile: 'sio' } });
    expect(command).toContain(`/v1/bench/run -d '{"wanted":{"dataset":"tank","profile":"sio"}}'`);
  });
});

describe('what it will do', () => {
  const look: BenchLook = {
    size_bytes: 1 << 30,
    space_bytes: 1 << 30,
    available_bytes: 8 * 2 ** 30,
    pool_available_bytes: 64 * 2 ** 30,
    quota: { dataset: 'tank/a', quota_bytes: 10 * 2 ** 30, used_bytes: 2 * 2 ** 30 },
    tests: [{ ...TEST, reads_percent: 0 }],
    writing_seconds: 120,
    seconds_max: 3600,
    problem: null,
  };
  const wanted = { dataset: 'tank/a', profile: 'iometer' } as const;

  it('is said with its share of what there is', () => {
    const told = willOf(wanted, look).join('\n');
    expect(told).toContain('A file or volume of 1 GiB is written below tank/a');
    expect(told).toContain('13% of the 8 GiB that are available there');
    expect(told).toContain('The pool as a whole has 64 GiB available; it is 2% of that.');
    expect(told).toContain('Of the quota of tank/a, 8 GiB are left; it is 13% of that.');
    expect(told).toContain('Loads write over it for up to 2 min');
    expect(told).toContain('It ends after 1 h at the latest');
    expect(told).toContain('will be slower');
  });

  it('leaves out what there is not', () => {
    const whole = { quota: null, pool_available_bytes: look.available_bytes };
    const told = willOf(wanted, { ...look, ...whole, tests: [TEST] });
    expect(told.join('\n')).not.toMatch(/quota|as a whole|write over/);
    expect(told).toContain('The loads themselves only read.');
  });
});

describe('what came of it', () => {
  it('is a row of the table', () => {
    expect(rowOf(measured())).toEqual({
      name: 'random reads of 4K, 9 deep',
      iops: '12,300/s',
      error: '± 200',
      rate: '50.6 MB/s',
      mean: '0.729 ms',
      p99: '2.5 ms',
      planned: null,
      isMoving: false,
    });
    const both = measured({
      reads: { iops: 30, rate: 1, mean_ms: 1, p99_ms: 4 },
      writes: { iops: 10, rate: 1, mean_ms: 5, p99_ms: 9 },
      planned_iops: 100,
      is_steady: false,
      iops_error: null,
    });
    expect(rowOf(both)).toMatchObject({
      mean: '2 ms',
      p99: '9 ms',
      planned: '100/s',
      isMoving: true,
      error: null,
    });
    expect(rowOf(measured({ reads: null })).p99).toBeNull();
  });

  it('has loads by name and depth', () => {
    expect(nameOf({ ...TEST, workers: 3 })).toBe('random reads of 4K, 3 workers');
    expect(nameOf({ ...TEST, is_whole: true })).toBe('random reads of 4K');
    expect(milliseconds(12.345)).toBe('12.3 ms');
  });

  it('is a curve, first until it is steady', () => {
    const curve = curveOf(measured());
    expect(curve.times_s).toEqual([1, 5, 6]);
    expect(curve.lines.map(({ values }) => values)).toEqual([
      [null, 20, 30],
      [10, null, null],
    ]);
    expect(curve.to_s).toBe(6);
    expect(curveOf(measured({ before: [] })).lines).toHaveLength(1);
  });

  it('has a curve for each load that has samples', () => {
    const none = measured({ before: [], points: [] });
    expect(curvesOf(report({ tests: [none, measured()] }))).toHaveLength(1);
    const warm_up = {
      wanted_seconds: 600,
      parts: [
        { at_seconds: 300, iops: 5, mean_ms: 1 },
        { at_seconds: 600, iops: 9, mean_ms: 1 },
      ],
    };
    const [curve] = curvesOf(report({ tests: [measured()], warm_up }));
    expect(curve?.lines[0]?.values).toEqual([5, 9]);
  });

  it('is told of streams', () => {
    const streams = {
      wanted: { rate: 1_250_000, recordings: 1, playbacks: 2 },
      most: 5,
      is_at_limit: false,
      planned: 7,
      tries: [],
    };
    expect(streamWords(streams)).toBe(
      'The most without a gap: 5 recordings and 10 playbacks at 1.25 MB/s each. ' +
        'Planned: 7 recordings and 14 playbacks.',
    );
    const none = { ...streams, most: 0, planned: null };
    expect(streamWords(none)).toBe('Not even one of each at 1.25 MB/s went without a gap.');
    expect(streamWords({ ...streams, is_at_limit: true })).toContain('More were not tried.');
  });

  it('is told step by step', () => {
    expect(stepWords({ step: 'filling' })).toMatch(/written first/);
    expect(stepWords({ step: 'load', name: 'a', number: 2, count: 16 })).toBe('Load 2 of 16: a');
    expect(stepWords({ step: 'warming', done_seconds: 300, total_seconds: 3600 })).toContain(
      '5 min of 1 h',
    );
  });

  it('has notes in words, but for those that cannot be here', () => {
    expect(noteWords({ note: 'unsure', tests: ['a', 'b'] })).toContain('a; b');
    expect(noteWords({ note: 'read-only', left_out: 3 })).toBeUndefined();
  });

  it('is summed up, and compared', () => {
    const kept: BenchKept = {
      id: 1,
      began_s: 0,
      dataset: 'tank',
      profile: 'iometer',
      is_volume: false,
      size_bytes: 1,
      iops_max: 1234,
      rate_max: 5e6,
      streams: null,
    };
    expect(bestOf(kept)).toBe('1,230/s, 5.00 MB/s');
    expect(bestOf({ ...kept, streams: 3 })).toBe('3 of each stream');
    expect(bestOf({ ...kept, iops_max: null, rate_max: null })).toBe('');
    expect(ratio(1.5)).toBe('1.50×');
    expect([true, false, null].map((is_sure) => sureness({ is_sure }))).toEqual([
      'sure',
      'within what both are unsure by',
      '',
    ]);
  });
});
