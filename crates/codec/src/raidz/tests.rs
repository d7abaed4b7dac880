//! Every implementation against the definition, and every way to lose columns.

use proptest::prelude::*;

use super::field::{coefficient, inverse, multiply};
use super::*;

/// Columns that differ by one sector of `sector` bytes: the first `long` of `count` are longer.
fn row(count: usize, long: usize, short_bytes: usize, sector: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut state = seed | 1;
    (0..count)
        .map(|column| {
            let length = short_bytes + if column < long { sector } else { 0 };
            (0..length)
                .map(|_| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    (state >> 32) as u8
                })
                .collect()
        })
        .collect()
}

fn borrowed(columns: &[Vec<u8>]) -> Vec<&[u8]> {
    columns.iter().map(Vec::as_slice).collect()
}

/// The sums of the module's head, byte by byte.
fn by_definition(parity_count: usize, data: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let length = data.iter().map(Vec::len).max().unwrap();
    (0..parity_count)
        .map(|parity| {
            (0..length)
                .map(|position| {
                    data.iter().enumerate().fold(0, |sum, (index, column)| {
                        let byte = column.get(position).copied().unwrap_or(0);
                        sum ^ multiply(coefficient(parity, index, data.len()), byte)
                    })
                })
                .collect()
        })
        .collect()
}

#[test]
fn the_field_is_the_one_of_zfs() {
    // Values of vdev_raidz_pow2[]: powers of the generator 2.
    let powers: Vec<u8> = (0..12).map(field::power).collect();
    assert_eq!(
        powers,
        [
            0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0x1d, 0x3a, 0x74, 0xe8
        ]
    );
    for value in 1..=255u8 {
        assert_eq!(multiply(value, inverse(value)), 1);
    }
}

#[test]
fn known_parity() {
    // D = 1, 2, 3: P = 1^2^3; Q = 4·1 ^ 2·2 ^ 3; R = 16·1 ^ 4·2 ^ 3.
    let parity = generate_columns(3, &[&[1], &[2], &[3]]).unwrap();
    assert_eq!(parity, [[0], [3], [0x1b]]);
    // With a carry: 2·0x80 = 0x1d, 4·0x80 = 0x3a.
    let parity = generate_columns(3, &[&[0x80], &[0]]).unwrap();
    assert_eq!(parity, [[0x80], [0x1d], [0x3a]]);
}

#[test]
fn every_implementation_generates_by_definition() {
    for implementation in implementations() {
        for (count, long, short, sector) in [
            (1, 1, 0, 512),
            (2, 1, 4096, 512),
            (3, 3, 1000, 24),
            (5, 2, 8192, 4096),
            (8, 8, 333, 0),
            (12, 7, 0, 512),
            (40, 13, 700, 100),
        ] {
            let data = row(count, long, short, sector, count as u64);
            for parity_count in 1..=3 {
                let expected = by_definition(parity_count, &data);
                let mut parity: Vec<Vec<u8>> = expected
                    .iter()
                    .map(|column| vec![0xee; column.len()])
                    .collect();
                let mut room: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
                implementation
                    .generate(&borrowed(&data), &mut room)
                    .unwrap();
                assert_eq!(
                    parity,
                    expected,
                    "{} {count} {parity_count}",
                    implementation.name()
                );
            }
        }
    }
}

/// All ways to lose up to `parity_count` of the columns.
fn losses(columns: usize, parity_count: usize) -> Vec<Vec<usize>> {
    (0u32..1 << columns)
        .filter(|set| set.count_ones() as usize <= parity_count)
        .map(|set| (0..columns).filter(|index| set >> index & 1 != 0).collect())
        .collect()
}

#[test]
fn every_loss_up_to_the_parity_comes_back_in_every_implementation() {
    for implementation in implementations() {
        for parity_count in 1..=3 {
            for (count, long, short, sector) in [
                (1, 1, 512, 0),
                (2, 1, 0, 512),
                (4, 2, 600, 72),
                (7, 7, 320, 0),
            ] {
                let data = row(count, long, short, sector, 99);
                let mut all = by_definition(parity_count, &data);
                all.extend(data);
                for lost in losses(all.len(), parity_count) {
                    let columns: Vec<Option<&[u8]>> = all
                        .iter()
                        .enumerate()
                        .map(|(index, column)| {
                            (!lost.contains(&index)).then_some(column.as_slice())
                        })
                        .collect();
                    let mut rooms: Vec<(usize, Vec<u8>)> = lost
                        .iter()
                        .map(|index| (*index, vec![0xee; all[*index].len()]))
                        .collect();
                    let mut missing: Vec<(usize, &mut [u8])> = rooms
                        .iter_mut()
                        .map(|(index, room)| (*index, room.as_mut_slice()))
                        .collect();
                    implementation
                        .reconstruct_into(parity_count, &columns, &mut missing)
                        .unwrap();
                    for (index, room) in &rooms {
                        assert_eq!(room, &all[*index], "{} {lost:?}", implementation.name());
                    }
                    let lengths: Vec<usize> = all.iter().map(Vec::len).collect();
                    assert_eq!(
                        reconstruct(parity_count, &columns, &lengths).unwrap(),
                        rooms
                    );
                }
            }
        }
    }
}

#[test]
fn the_widest_row_comes_back() {
    let data = row(255, 100, 64, 16, 5);
    let mut all = by_definition(3, &data);
    all.extend(data);
    let lengths: Vec<usize> = all.iter().map(Vec::len).collect();
    for lost in [
        [3, 4, 5],
        [3, 130, 257],
        [0, 100, 257],
        [255, 256, 257],
        [0, 1, 2],
    ] {
        let mut columns: Vec<Option<&[u8]>> = all.iter().map(|c| Some(c.as_slice())).collect();
        for index in lost {
            columns[index] = None;
        }
        for (index, column) in reconstruct(3, &columns, &lengths).unwrap() {
            assert_eq!(column, all[index]);
        }
    }
}

#[test]
fn a_lost_column_need_not_be_asked_for() {
    let data = row(3, 3, 512, 0, 8);
    let parity = by_definition(2, &data);
    let columns = [
        Some(&parity[0][..]),
        Some(&parity[1][..]),
        None,
        None,
        Some(&data[2][..]),
    ];
    let mut room = vec![0; 512];
    reconstruct_into(2, &columns, &mut [(3, &mut room)]).unwrap();
    assert_eq!(room, data[1]);
}

#[test]
fn what_cannot_be_is_refused() {
    let column: &[u8] = &[1, 2, 3, 4];
    let some = Some(column);
    assert_eq!(
        reconstruct(2, &[some, None, None, None, some], &[4; 5]),
        Err(RaidzError::TooManyMissing {
            missing: 3,
            parity: 1
        })
    );
    let shape =
        |result: Result<_, RaidzError>| assert!(matches!(result, Err(RaidzError::Shape { .. })));
    shape(reconstruct(0, &[some, None], &[4; 2]).map(drop));
    shape(reconstruct(4, &[some; 6], &[4; 6]).map(drop));
    shape(reconstruct(1, &[some], &[4]).map(drop));
    shape(reconstruct(1, &[some, None], &[4]).map(drop));
    shape(reconstruct(1, &[some, None], &[4, 5]).map(drop));
    shape(reconstruct(1, &[some, some], &[4, 5]).map(drop));
    shape(reconstruct(2, &[some, Some(&[1]), None], &[4, 1, 4]).map(drop));
    let mut room = [0; 4];
    shape(reconstruct_into(1, &[some, some], &mut [(1, &mut room)]));
    shape(reconstruct_into(1, &[some, None], &mut [(7, &mut room)]));
    let mut twice = [0; 4];
    shape(reconstruct_into(
        1,
        &[some, None, some],
        &mut [(1, &mut room), (1, &mut twice)],
    ));
    shape(generate(&[], &mut [&mut room]));
    shape(generate(&[column], &mut []));
    shape(generate(&[column], &mut [&mut room[..3]]));
    shape(generate(&[column; 256], &mut [&mut room]));
}

/// Bytes that begin `shift` behind where the allocator puts them, with others around them.
struct Shifted {
    memory: Vec<u8>,
    shift: usize,
    length: usize,
}

/// What is around the bytes.
const AROUND: u8 = 0xa5;

impl Shifted {
    fn of(bytes: &[u8], shift: usize) -> Self {
        let mut memory = vec![AROUND; shift + bytes.len() + 64];
        memory[shift..][..bytes.len()].copy_from_slice(bytes);
        Shifted {
            memory,
            shift,
            length: bytes.len(),
        }
    }

    fn room(length: usize, shift: usize) -> Self {
        Self::of(&vec![0xee; length], shift)
    }

    fn get(&self) -> &[u8] {
        &self.memory[self.shift..][..self.length]
    }

    fn get_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.shift..][..self.length]
    }

    fn is_alone_written(&self) -> bool {
        let (before, rest) = self.memory.split_at(self.shift);
        let mut around = before.iter().chain(&rest[self.length..]);
        around.all(|byte| *byte == AROUND)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    /// Ragged columns, wherever they begin in memory: every implementation computes what the
    /// definition says, for every way to lose as many columns as there is parity, and writes
    /// nothing else.
    #[test]
    fn implementations_agree_on_any_row(
        columns in proptest::collection::vec((0usize..1500, 0usize..64), 1..10),
        parity_count in 1usize..4,
        same in any::<bool>(),
        lost in proptest::collection::vec(any::<prop::sample::Index>(), 0..4),
        seed in any::<u64>(),
    ) {
        let data: Vec<Vec<u8>> = columns
            .iter()
            .enumerate()
            .map(|(index, (length, _))| {
                let length = if same { columns[0].0 } else { *length };
                row(1, 0, length, 0, seed ^ (index as u64) << 7).remove(0)
            })
            .collect();
        let mut all = by_definition(parity_count, &data);
        all.extend(data);
        let shift = |index: usize| columns[index % columns.len()].1;
        let shifted: Vec<Shifted> = all
            .iter()
            .enumerate()
            .map(|(index, column)| Shifted::of(column, shift(index)))
            .collect();
        let mut lost: Vec<usize> =
            lost.iter().take(parity_count).map(|index| index.index(all.len())).collect();
        let mut seen = std::collections::HashSet::new();
        lost.retain(|index| seen.insert(*index));
        let given: Vec<Option<&[u8]>> = shifted
            .iter()
            .enumerate()
            .map(|(index, column)| (!lost.contains(&index)).then_some(column.get()))
            .collect();
        let data: Vec<&[u8]> = shifted[parity_count..].iter().map(Shifted::get).collect();
        for implementation in implementations() {
            let name = implementation.name();
            let mut parity: Vec<Shifted> = (0..parity_count)
                .map(|index| Shifted::room(all[index].len(), shift(index + 1)))
                .collect();
            let mut rooms: Vec<&mut [u8]> = parity.iter_mut().map(Shifted::get_mut).collect();
            implementation.generate(&data, &mut rooms).unwrap();
            for (column, expected) in parity.iter().zip(&all) {
                prop_assert_eq!(column.get(), expected, "{}", name);
                prop_assert!(column.is_alone_written(), "{}", name);
            }
            let mut found: Vec<Shifted> = lost
                .iter()
                .map(|index| Shifted::room(all[*index].len(), shift(index + 2)))
                .collect();
            let mut missing: Vec<(usize, &mut [u8])> =
                lost.iter().copied().zip(found.iter_mut().map(Shifted::get_mut)).collect();
            implementation.reconstruct_into(parity_count, &given, &mut missing).unwrap();
            for (column, index) in found.iter().zip(&lost) {
                prop_assert_eq!(column.get(), &all[*index], "{} {:?}", name, &lost);
                prop_assert!(column.is_alone_written(), "{}", name);
            }
        }
    }
}
