/** Numbers as people read them; sizes are binary, as ZFS prints them. */

const LETTERS = ['', 'K', 'M', 'G', 'T', 'P', 'E', 'Z'] as const;

/**
 * Bytes with three digits and a letter: `1.50G`, `128K`, `512B`. The letters are powers of 1024, as
 * in `zfs list`.
 */
export function bytes(value: number): string {
  if (!Number.isFinite(value)) return '–';
  let index = 0;
  let rest = Math.abs(value);
  while (rest >= 1024 && index < LETTERS.length - 1) {
    rest /= 1024;
    index += 1;
  }
  const sign = value < 0 ? '-' : '';
  if (index === 0) return `${sign}${Math.round(rest)}B`;
  // Exact powers are shown without a fraction, as `zfs` does it; 999.9 does not become 1000.
  const digits = Number.isInteger(rest) ? 0 : rest < 10 ? 2 : rest < 100 ? 1 : 0;
  const factor = 10 ** digits;
  const shown = (Math.floor(rest * factor) / factor).toFixed(digits);
  return `${sign}${shown}${LETTERS[index]}`;
}

/** The same for screens: `1.50 GiB`. */
export function size(value: number): string {
  const text = bytes(value);
  const found = /^(.*?)([KMGTPEZ])$/.exec(text);
  if (found) return `${found[1]} ${found[2]}iB`;
  return text.endsWith('B') ? `${text.slice(0, -1)} B` : text;
}

export function rate(bytesPerSecond: number): string {
  return `${size(bytesPerSecond)}/s`;
}

/**
 * Bytes of what a person types: `10G`, `1.5 TiB`, `512`. Undefined where that makes no sense, or is
 * no whole number of bytes that a double can hold.
 */
export function parseSize(text: string): number | undefined {
  const found = /^\s*(\d+(?:\.\d+)?)\s*(?:([kmgtpe])(?:i?b)?|b)?\s*$/i.exec(text);
  if (!found?.[1]) return undefined;
  const power = found[2] ? 'KMGTPE'.indexOf(found[2].toUpperCase()) + 1 : 0;
  const value = Math.round(Number(found[1]) * 1024 ** power);
  return Number.isSafeInteger(value) ? value : undefined;
}

export function count(value: number): string {
  return value.toLocaleString('en');
}

/** A share of a whole in percent, never `100%` or `0%` where it is not quite. */
export function percent(part: number, whole: number): string {
  if (!(whole > 0)) return '0%';
  const value = (part / whole) * 100;
  if (value > 0 && value < 1) return '<1%';
  if (value > 99 && value < 100) return '99%';
  return `${Math.round(value)}%`;
}

/** Seconds as `3 days`, `2 h 5 min`, `12 s`. */
export function duration(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  const days = Math.floor(whole / 86_400);
  const hours = Math.floor((whole % 86_400) / 3600);
  const minutes = Math.floor((whole % 3600) / 60);
  if (days >= 2) return `${days} days`;
  if (days === 1) return hours > 0 ? `1 day ${hours} h` : '1 day';
  if (hours > 0) return minutes > 0 ? `${hours} h ${minutes} min` : `${hours} h`;
  if (minutes > 0) {
    const rest = whole % 60;
    return minutes < 5 && rest > 0 ? `${minutes} min ${rest} s` : `${minutes} min`;
  }
  return `${whole} s`;
}

/** A moment, in seconds since 1970: `25 Nov 2026, 14:03`. */
export function moment(seconds: number): string {
  return new Date(seconds * 1000).toLocaleString('en-GB', {
    day: 'numeric',
    month: 'short',
    year: 'numeric',
    hour: '2-digit',
    minute: '2-digit',
  });
}

/** How long ago a moment was: `just now`, `5 min ago`. */
export function ago(seconds: number, now: number = Date.now() / 1000): string {
  const past = now - seconds;
  return past < 10 ? 'just now' : `${duration(past)} ago`;
}
