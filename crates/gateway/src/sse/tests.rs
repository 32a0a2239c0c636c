use super::*;
use proptest::prelude::*;

/// The frames of a stream that comes in these chunks.
fn frames(chunks: &[&[u8]]) -> Vec<Piece> {
    let mut framer = Framer::default();
    let mut pieces = Vec::new();
    for chunk in chunks {
        framer.push(Bytes::copy_from_slice(chunk), |piece| pieces.push(piece));
    }
    pieces.extend(framer.finish());
    pieces
}

/// The data of each event.
fn events(chunks: &[&[u8]]) -> Vec<String> {
    let (mut lines, mut events, mut event) = (DataLines::default(), Vec::new(), Vec::new());
    for piece in frames(chunks) {
        lines.push(&piece.bytes, |data| event.extend_from_slice(data));
        if piece.ends {
            events.push(String::from_utf8_lossy(&std::mem::take(&mut event)).into_owned());
            lines.end_event();
        }
    }
    events
}

#[track_caller]
fn check(stream: &str, expected_frames: &[&str], expected_events: &[&str]) {
    let bytes = stream.as_bytes();
    let whole: Vec<Piece> = frames(&[bytes]);
    assert_eq!(
        whole.iter().map(|piece| &piece.bytes[..]).collect::<Vec<_>>(),
        expected_frames.iter().map(|frame| frame.as_bytes()).collect::<Vec<_>>()
    );
    assert_eq!(events(&[bytes]), expected_events, "{stream:?}");
    for cut in 0..=bytes.len() {
        for second in cut..=bytes.len() {
            let chunks = [&bytes[..cut], &bytes[cut..second], &bytes[second..]];
            assert_eq!(events(&chunks), expected_events, "{stream:?} cut at {cut} and {second}");
            let joined: Vec<u8> = frames(&chunks).iter().flat_map(|piece| piece.bytes.to_vec()).collect();
            assert_eq!(joined, bytes);
        }
    }
}

#[test]
fn every_line_ending_ends_a_frame_however_it_is_cut() {
    check("data: a\n\ndata: b\n\n", &["data: a\n\n", "data: b\n\n"], &["a", "b"]);
    check("data: a\r\n\r\ndata: b\r\n\r\n", &["data: a\r\n\r\n", "data: b\r\n\r\n"], &["a", "b"]);
    check("data: a\r\rdata: b\r\r", &["data: a\r\r", "data: b\r\r"], &["a", "b"]);
    check("data: a\n\r\ndata: b\r\n\n", &["data: a\n\r\n", "data: b\r\n\n"], &["a", "b"]);
    check("data: a\r\n\rdata: b\n\r", &["data: a\r\n\r", "data: b\n\r"], &["a", "b"]);
}

#[test]
fn data_is_read_as_the_standard_says() {
    check("data:a\ndata: b\ndata:  c\n\n", &["data:a\ndata: b\ndata:  c\n\n"], &["a\nb\n c"]);
    check(": comment\nevent: x\ndata: a\nid: 7\n\n", &[": comment\nevent: x\ndata: a\nid: 7\n\n"], &["a"]);
    check("data\ndata\n\n", &["data\ndata\n\n"], &["\n"]);
    check("datax: a\ndat: b\n data: c\nDATA: d\n\n", &["datax: a\ndat: b\n data: c\nDATA: d\n\n"], &[""]);
    check("\u{feff}data: a\n\n", &["\u{feff}data: a\n\n"], &["a"]);
    check("data: a\n\n\u{feff}data: b\n\n", &["data: a\n\n", "\u{feff}data: b\n\n"], &["a", ""]);
    check("data: a: b\n\n", &["data: a: b\n\n"], &["a: b"]);
    check("\n\ndata: a\n\n", &["\n", "\n", "data: a\n\n"], &["", "", "a"]);
}

#[test]
fn a_cut_stream_ends_with_the_bytes_that_came() {
    check("data: a\n\ndata: b\n", &["data: a\n\n", "data: b\n"], &["a"]);
    check("data: a", &["data: a"], &[]);
    let pieces = frames(&[b"data: a"]);
    assert!(pieces[0].starts);
    assert!(!pieces[0].ends);
    assert_eq!(frames(&[]), []);
}

#[test]
fn a_frame_beyond_the_bound_passes_in_pieces_and_is_never_held_whole() {
    let mut framer = Framer::default();
    let mut pieces = Vec::new();
    for _ in 0..1_000 {
        framer.push(Bytes::from(vec![b'x'; 1_000]), |piece| pieces.push(piece));
        assert!(framer.held.len() <= FRAME_BYTES_MAX);
    }
    framer.push(Bytes::from_static(b"\n\ndata: a\n\n"), |piece| pieces.push(piece));
    assert!(pieces[0].starts);
    assert!(pieces[1..pieces.len() - 1].iter().all(|piece| !piece.starts));
    let last = &pieces[pieces.len() - 2];
    assert_eq!((&last.bytes[..], last.ends), (&b"\n\n"[..], true));
    assert!(pieces[pieces.len() - 1].is_whole());
    assert_eq!(pieces.iter().map(|piece| piece.bytes.len()).sum::<usize>(), 1_000_000 + 2 + 9);
}

#[test]
fn a_frame_in_one_chunk_is_not_copied() {
    let chunk = Bytes::from_static(b"data: a\n\ndata: b\n\n");
    let mut pieces = Vec::new();
    Framer::default().push(chunk.clone(), |piece| pieces.push(piece));
    assert_eq!(pieces[1].bytes.as_ptr(), chunk[9..].as_ptr());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn random_streams_come_out_byte_for_byte_at_every_way_of_cutting_them(
        stream in "(data|data:|: |event:|[\n\r]|[\n\r][\n\r]|\r\n|[a-d ]|é){0,40}",
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let bytes = stream.as_bytes();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let chunks: Vec<&[u8]> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
        let joined: Vec<u8> = frames(&chunks).iter().flat_map(|piece| piece.bytes.to_vec()).collect();
        prop_assert_eq!(joined, bytes);
        prop_assert_eq!(events(&chunks), events(&[bytes]));
    }

    #[test]
    fn random_bytes_never_panic(chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..10)) {
        let chunks: Vec<&[u8]> = chunks.iter().map(Vec::as_slice).collect();
        let joined: Vec<u8> = frames(&chunks).iter().flat_map(|piece| piece.bytes.to_vec()).collect();
        prop_assert_eq!(joined, chunks.concat());
    }
}
