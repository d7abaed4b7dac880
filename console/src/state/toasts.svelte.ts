/** Short notes of what was done. They are read aloud, and go by themselves. */

export interface Toast {
  id: number;
  text: string;
  kind: 'ok' | 'bad' | 'accent';
  link?: { href: string; text: string };
}

const STAYS_MS = 8000;

class Toasts {
  list = $state<Toast[]>([]);
  #next = 1;

  add(text: string, kind: Toast['kind'] = 'ok', link?: Toast['link']): void {
    const id = this.#next++;
    this.list.push(link ? { id, text, kind, link } : { id, text, kind });
    setTimeout(() => this.remove(id), STAYS_MS);
  }

  remove(id: number): void {
    this.list = this.list.filter((toast) => toast.id !== id);
  }
}

export const toasts = new Toasts();
