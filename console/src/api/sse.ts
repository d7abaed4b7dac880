/** Server-sent events, taken from a stream of text as it comes (the WHATWG's HTML, 9.2.6). */

export interface Message {
  id: string;
  event: string;
  data: string;
}

export class SseParser {
  #rest = '';
  #id = '';
  #event = '';
  #data: string[] = [];

  /** Takes what came, cut anywhere, and gives the messages that are whole. */
  push(text: string): Message[] {
    const out: Message[] = [];
    this.#rest += text;
    for (;;) {
      const end = /\r\n|\n|\r(?!$)/.exec(this.#rest);
      if (!end) return out;
      const line = this.#rest.slice(0, end.index);
      this.#rest = this.#rest.slice(end.index + end[0].length);
      const message = this.#line(line);
      if (message) out.push(message);
    }
  }

  #line(line: string): Message | undefined {
    if (line === '') {
      const message = { id: this.#id, event: this.#event, data: this.#data.join('\n') };
      const is_empty = this.#data.length === 0;
      this.#event = '';
      this.#data = [];
      return is_empty ? undefined : message;
    }
    const colon = line.indexOf(':');
    if (colon === 0) return undefined;
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
    if (name === 'id') this.#id = value;
    else if (name === 'event') this.#event = value;
    else if (name === 'data') this.#data.push(value);
    return undefined;
  }
}
