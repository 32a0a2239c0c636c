use super::*;

const NAMES: [&str; 3] = ["a:1", "b:1", "c:1"];

fn founders() -> Founders {
    Founders::of(&NAMES.map(str::to_owned), "a:1").unwrap()
}

fn promise(incarnations: [u128; 3]) -> Promise {
    Promise { founders: NAMES.map(str::to_owned).into_iter().zip(incarnations).collect() }
}

fn bytes(number: u128) -> Bytes {
    Bytes::copy_from_slice(&number.to_le_bytes())
}

/// The answer of an empty founder.
fn empty(place: usize, incarnation: u128, promised: Option<&Promise>) -> Answer {
    let said = HelloReply {
        node: id_at(place),
        incarnation: bytes(incarnation),
        address: NAMES[place].to_owned(),
        founders: NAMES.map(str::to_owned).into(),
        promised: promised.map(|promise| bytes(promise.cluster())).unwrap_or_default(),
        ..HelloReply::default()
    };
    Answer { place, said: Ok(said) }
}

/// A founder that does not answer.
fn silent(place: usize) -> Answer {
    Answer { place, said: Err(CallError::Failed { address: NAMES[place].to_owned(), message: "closed".into() }) }
}

fn with(mut answer: Answer, change: impl FnOnce(&mut HelloReply)) -> Answer {
    change(answer.said.as_mut().unwrap());
    answer
}

/// The step of founder a with incarnation 1.
fn step(promise: Option<Promise>, answers: &[Answer]) -> Step {
    decide(&founders(), &FounderFile { incarnation: 1, promise }, answers, &mut BTreeSet::new())
}

#[test]
fn a_founder_promises_once_all_are_empty_and_name_the_same_founders() {
    let all = promise([1, 2, 3]);
    assert_eq!(step(None, &[empty(1, 2, None), empty(2, 3, None)]), Step::Promise(all.clone()));
    assert_eq!(step(None, &[empty(1, 2, Some(&all)), empty(2, 3, None)]), Step::Promise(all));
    let other_list = with(empty(2, 3, None), |said| said.founders = vec!["a:1".into(), "c:1".into()]);
    let other_order = with(empty(2, 3, None), |said| said.founders.swap(0, 1));
    let other_node = with(empty(2, 3, None), |said| said.address = "b:1".into());
    for (answer, why) in [
        (silent(2), "cannot be reached"),
        (other_list, "another --bootstrap: a:1,c:1"),
        (other_order, "another --bootstrap: b:1,a:1,c:1"),
        (other_node, "\"b:1\" answers at c:1"),
    ] {
        let Step::Wait(text) = step(None, &[empty(1, 2, None), answer]) else { panic!("{why}: no wait") };
        assert!(text.contains(why), "{text}");
    }
}

#[test]
fn a_cluster_begins_only_if_all_have_made_the_same_promise() {
    let all = promise([1, 2, 3]);
    let begins = |answers: &[Answer]| step(Some(all.clone()), answers) == Step::Begin(all.clone());
    assert!(begins(&[empty(1, 2, Some(&all)), empty(2, 3, Some(&all))]));
    let has_begun = || with(empty(1, 2, None), |said| said.cluster = bytes(all.cluster()));
    assert!(begins(&[has_begun(), empty(2, 3, Some(&all))]));
    assert!(!begins(&[has_begun(), empty(2, 3, None)]));
    // One of them lost its folder after the promise.
    assert!(!begins(&[empty(1, 2, Some(&all)), empty(2, 33, None)]));
    assert!(!begins(&[empty(1, 2, Some(&all)), empty(2, 33, Some(&promise([1, 2, 33])))]));
    // A promise that was heard once stays.
    let file = FounderFile { incarnation: 1, promise: Some(all.clone()) };
    let mut confirmed = BTreeSet::new();
    let first = decide(&founders(), &file, &[empty(1, 2, Some(&all)), silent(2)], &mut confirmed);
    assert!(matches!(first, Step::Wait(_)), "{first:?}");
    let second = decide(&founders(), &file, &[silent(1), empty(2, 3, Some(&all))], &mut confirmed);
    assert_eq!(second, Step::Begin(all));
}

#[test]
fn a_founder_joins_the_cluster_of_another_even_if_the_third_does_not_answer() {
    let has_cluster = || with(empty(1, 2, None), |said| said.cluster = bytes(77));
    assert_eq!(step(None, &[has_cluster(), silent(2)]), Step::Join);
    assert_eq!(step(None, &[has_cluster(), empty(2, 3, None)]), Step::Join);
    // A promise binds it to another cluster.
    let refused = step(Some(promise([1, 2, 3])), &[has_cluster(), empty(2, 3, None)]);
    assert!(matches!(&refused, Step::Refuse(why) if why.contains("hold no data: delete them")), "{refused:?}");
    // Its certificate has an id that is a member with another folder.
    let excluded = Answer { place: 1, said: Err(CallError::Excluded { message: "other folder".into() }) };
    assert_eq!(step(None, &[excluded, silent(2)]), Step::Refuse("other folder".into()));
}

#[test]
fn a_founder_alone_begins_at_once() {
    let alone = Founders::of(&["a:1".to_owned()], "A:1").unwrap();
    let mut file = FounderFile { incarnation: 1, promise: None };
    let Step::Promise(promise) = decide(&alone, &file, &[], &mut BTreeSet::new()) else { panic!("no promise") };
    file.promise = Some(promise.clone());
    assert_eq!(decide(&alone, &file, &[], &mut BTreeSet::new()), Step::Begin(promise));
}

#[test]
fn the_first_entry_has_all_founders_as_voters() {
    let EntryPayload::Membership(membership) = first_entry(&promise([1, 2, 3])).payload else { panic!("no members") };
    assert_eq!(membership.voter_ids().collect::<Vec<_>>(), [1, 2, 3]);
    let address = |id: u64| membership.get_node(&id).unwrap().address.clone();
    assert_eq!([1, 2, 3].map(address), NAMES);
}

#[test]
fn a_promise_to_other_founders_is_not_forgotten() {
    let file = FounderFile { incarnation: 1, promise: Some(promise([1, 2, 3])) };
    assert!(check_promise(&founders(), &file).is_ok());
    let more = Founders::of(&["a:1".to_owned(), "d:1".to_owned()], "a:1").unwrap();
    let error = check_promise(&more, &file).unwrap_err().to_string();
    assert!(error.contains("--bootstrap a:1,b:1,c:1"), "{error}");
}
