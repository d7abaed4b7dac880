import { expect, it } from 'vitest';

import { SseParser } from './sse';

const text =
  ': hello\n\nid: 17\nevent: job.progress\ndata: {"a":1}\n\n' +
  'id:18\r\nevent: x\r\ndata: one\r\ndata: two\r\n\r\nevent: nothing\n\n';

const expected = [
  { id: '17', event: 'job.progress', data: '{"a":1}' },
  { id: '18', event: 'x', data: 'one\ntwo' },
];

it('reads messages, comments and empty ones left out', () => {
  expect(new SseParser().push(text)).toEqual(expected);
});

it('reads them however they are cut', () => {
  for (let at = 1; at < text.length; at += 1) {
    const parser = new SseParser();
    const got = [...parser.push(text.slice(0, at)), ...parser.push(text.slice(at))];
    expect(got).toEqual(expected);
  }
  const parser = new SseParser();
  expect([...text].flatMap((letter) => parser.push(letter))).toEqual(expected);
});

it('gives nothing that is not whole', () => {
  expect(new SseParser().push('id: 1\ndata: half')).toEqual([]);
});
