/** Trees as lists that tables show, and what their rows are about. */
import type { Dataset, PropertyMap, Source, Vdev, VdevClass } from '../api/types';
import { t } from '../texts/en';

export interface VdevRow {
  vdev: Vdev;
  depth: number;
  /** The vdev that it is a member of. */
  parent: Vdev;
  isLeaf: boolean;
}

export interface VdevGroup {
  class: VdevClass;
  rows: VdevRow[];
}

const CLASSES: readonly VdevClass[] = ['normal', 'special', 'dedup', 'log', 'cache', 'spare'];

/** A pool's vdevs by what they are for, each before its members. */
export function vdevGroups(root: Vdev): VdevGroup[] {
  const add = (vdev: Vdev, parent: Vdev, depth: number, out: VdevRow[]): void => {
    out.push({ vdev, depth, parent, isLeaf: vdev.children.length === 0 });
    for (const child of vdev.children) add(child, vdev, depth + 1, out);
  };
  const groups: VdevGroup[] = [];
  for (const name of CLASSES) {
    const rows: VdevRow[] = [];
    const top = root.children.filter((vdev) => vdev.class === name && vdev.kind !== 'hole');
    for (const vdev of top) add(vdev, root, 0, rows);
    if (rows.length > 0) groups.push({ class: name, rows });
  }
  return groups;
}

/** A pool's layout in a few words: `2 × mirror, 1 × raidz2`. */
export function layoutWords(root: Vdev): string {
  const counts = new Map<string, number>();
  for (const vdev of root.children) {
    if (vdev.class !== 'normal' || vdev.kind === 'hole' || vdev.kind === 'indirect') continue;
    const kind = t.devices.kinds[vdev.kind] ?? vdev.kind;
    const word = vdev.parity > 0 ? `${kind}${vdev.parity}` : kind;
    const width = vdev.children.length;
    const full = width > 0 ? `${word} (${width})` : word;
    counts.set(full, (counts.get(full) ?? 0) + 1);
  }
  return [...counts].map(([word, count]) => (count === 1 ? word : `${count} × ${word}`)).join(', ');
}

/** What a leaf's file is called, without the directories that all have. */
export function shortName(vdev: Vdev): string {
  if (vdev.children.length > 0 || !vdev.name.startsWith('/')) return vdev.name;
  return vdev.name.slice(vdev.name.lastIndexOf('/') + 1);
}

export function parentOf(dataset: string): string | undefined {
  const at = dataset.lastIndexOf('/');
  return at < 0 ? undefined : dataset.slice(0, at);
}

export function depthOf(dataset: string): number {
  return dataset.split('/').length - 1;
}

export function poolOf(dataset: string): string {
  return dataset.split(/[/@#]/)[0] ?? dataset;
}

/** `monday` of `tank/a@monday`. */
export function snapshotName(full: string): string {
  return full.slice(full.indexOf('@') + 1);
}

/**
 * The datasets whose names contain a text, with those above them, so that it is still a tree.
 */
export function filterTree(datasets: readonly Dataset[], text: string): Dataset[] {
  const wanted = text.trim().toLowerCase();
  if (wanted === '') return [...datasets];
  const kept = new Set<string>();
  for (const { name } of datasets) {
    if (!name.toLowerCase().includes(wanted)) continue;
    for (let at: string | undefined = name; at !== undefined; at = parentOf(at)) kept.add(at);
  }
  return datasets.filter(({ name }) => kept.has(name));
}

export function number(properties: PropertyMap, name: string): number {
  return Number(properties[name]?.value ?? 0) || 0;
}

export function text(properties: PropertyMap, name: string): string {
  return properties[name]?.value ?? '';
}

export function sourceWords(source: Source): string {
  if (typeof source === 'object') return t.properties.inheritedFrom(source.inherited);
  return t.properties.sources[source];
}
