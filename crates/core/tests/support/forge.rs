//! Corrupted bytes.

use super::random::Random;

/// Flips, overwrites, cuts, duplicates and moves bytes.
pub fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..random.between(1, 4) {
        if bytes.is_empty() {
            return;
        }
        let (from, to) = (random.index(bytes.len()), random.index(bytes.len()));
        let length = random.index(bytes.len() - from.max(to)) + 1;
        match random.below(8) {
            0 | 1 => bytes[from] ^= 1 << random.below(8),
            2 => bytes[from] = random.pick(&[0, 1, 0x7f, 0x80, 0xff]),
            3 => {
                let number = random.pick(&[0, 1, u64::MAX, 1 << 47, u64::from(u32::MAX)]).to_le_bytes();
                let end = (from + 8).min(bytes.len());
                bytes[from..end].copy_from_slice(&number[..end - from]);
            }
            4 => bytes.truncate(from),
            5 => drop(bytes.drain(from..from + length.min(40))),
            6 => bytes.copy_within(from..from + length, to),
            _ => {
                let more = random.bytes(random.clone().index(20) + 1);
                bytes.splice(from..from, more);
            }
        }
    }
}

const HEADER_BYTES: usize = 12;
const FRAME_BYTES: usize = 9;

/// The blocks of a snapshot, with their frames.
fn blocks(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut blocks = Vec::new();
    let mut rest = &bytes[HEADER_BYTES..];
    while !rest.is_empty() {
        let length = u32::from_le_bytes([rest[1], rest[2], rest[3], rest[4]]) as usize;
        let (block, after) = rest.split_at(FRAME_BYTES + length);
        blocks.push(block.to_vec());
        rest = after;
    }
    blocks
}

/// A snapshot of these blocks with correct lengths and checksums, so that only its records can be wrong.
fn sealed(header: &[u8], blocks: Vec<Vec<u8>>) -> Vec<u8> {
    let mut forged = header.to_vec();
    let mut before = 0_u32;
    for mut block in blocks {
        let length = u32::try_from(block.len() - FRAME_BYTES).unwrap();
        block[1..5].copy_from_slice(&length.to_le_bytes());
        let mut checksum = crc32fast::Hasher::new();
        checksum.update(&before.to_le_bytes());
        checksum.update(&block[..5]);
        checksum.update(&block[FRAME_BYTES..]);
        before = checksum.finalize();
        block[5..FRAME_BYTES].copy_from_slice(&before.to_le_bytes());
        forged.extend_from_slice(&block);
    }
    forged
}

/// A snapshot with one block rewritten, dropped, duplicated or split.
pub fn forge(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut blocks = blocks(bytes);
    let block = random.index(blocks.len());
    match random.below(10) {
        0 => drop(blocks.remove(block)),
        1 => blocks.insert(random.index(blocks.len()), blocks[block].clone()),
        2 => {
            let cut = FRAME_BYTES + random.index(blocks[block].len() - FRAME_BYTES + 1);
            let tail = blocks[block].split_off(cut);
            let frame = blocks[block][..FRAME_BYTES].to_vec();
            blocks.insert(block + 1, [frame, tail].concat());
        }
        _ => {
            let mut records = blocks[block].split_off(FRAME_BYTES);
            mutate(&mut records, random);
            blocks[block].extend(records);
        }
    }
    sealed(&bytes[..HEADER_BYTES], blocks)
}

/// A snapshot with `found`, which must occur once, replaced by bytes of the same length.
pub fn replace(bytes: &[u8], found: &[u8], by: &[u8]) -> Vec<u8> {
    assert_eq!(found.len(), by.len());
    let mut blocks = blocks(bytes);
    let mut places = Vec::new();
    for (number, block) in blocks.iter().enumerate() {
        let windows = block.windows(found.len()).enumerate().skip(FRAME_BYTES);
        places.extend(windows.filter(|(_, window)| *window == found).map(|(place, _)| (number, place)));
    }
    assert_eq!(places.len(), 1, "{found:?} is at {places:?}");
    for (number, place) in places {
        blocks[number][place..place + by.len()].copy_from_slice(by);
    }
    sealed(&bytes[..HEADER_BYTES], blocks)
}
