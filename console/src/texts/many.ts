/** One of something or several: `1 disk`, `3 disks`. */
export function many(count: number, one: string, several = `${one}s`): string {
  return `${count} ${count === 1 ? one : several}`;
}
