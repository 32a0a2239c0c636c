//! `usage`, `top` and `decisions` on a terminal, which `script` makes.

use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use crate::ask::free;
use crate::support::{Server, command, wait};

/// A command on a terminal of 24 lines with 100 columns.
struct Terminal {
    child: Child,
    /// All bytes that the command wrote.
    written: Arc<Mutex<String>>,
}

impl Terminal {
    fn run(server: &str, line: &str) -> Terminal {
        let earmark = env!("CARGO_BIN_EXE_earmark");
        let inner = format!("stty rows 24 cols 100; exec {earmark} {line} --server {server}");
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--flush", "--command", &inner, "/dev/null"]).env_remove("NO_COLOR");
        let spawned = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.expect("script of util-linux");
        let mut stdout = child.stdout.take().unwrap();
        let written = Arc::new(Mutex::new(String::new()));
        let all = Arc::clone(&written);
        std::thread::spawn(move || {
            let mut bytes = [0; 4_096];
            let mut rest = Vec::new();
            while let Ok(count @ 1..) = stdout.read(&mut bytes) {
                rest.extend_from_slice(&bytes[..count]);
                // A character may be cut at the end of a read.
                let valid = std::str::from_utf8(&rest).map_or_else(|error| error.valid_up_to(), str::len);
                let text: Vec<u8> = rest.drain(..valid).collect();
                all.lock().unwrap().push_str(std::str::from_utf8(&text).unwrap());
            }
        });
        Terminal { child, written }
    }

    /// Waits until the screens after the first `from` bytes show all these texts. Returns the bytes so far.
    fn shows(&self, from: usize, texts: &[&str]) -> usize {
        wait(&format!("{texts:?}"), || {
            let written = self.written.lock().unwrap();
            texts.iter().all(|text| written[from..].contains(text))
        });
        self.written.lock().unwrap().len()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn serve(folder: &std::path::Path, address: &str) -> Server {
    Server::of(&mut command(&["serve", "--data", folder.to_str().unwrap(), "--listen", address]))
}

#[test]
fn a_watched_list_is_drawn_in_place_in_colour_and_waits_for_a_server_that_is_away() {
    let folder = tempfile::tempdir().unwrap();
    let address = free();
    let server = serve(folder.path(), &address);
    server.line("limits put --key full:rpm --kind rolling --capacity 10 --window 3600").ends(0);
    server.line("limits put --key half:rpm --kind rolling --capacity 10 --window 3600").ends(0);
    server.reserve("--key full:rpm=10 --key half:rpm=4");
    let usage = Terminal::run(&server.url(), "usage --sort fullness --watch 1");
    let top = Terminal::run(&server.url(), "top --of denied --within 1h --watch 1");
    let first = usage
        .shows(0, &["\u{1b}[H", "every 1 s, Ctrl-C ends", "\u{1b}[31mfull:rpm", "██████████ 100%", "████░░░░░░  40%"]);
    top.shows(0, &["nothing counted"]);
    server.reserve("--key half:rpm=4");
    usage.shows(first, &["\u{1b}[33mhalf:rpm", "████████░░  80%"]);
    server.line("reserve --key full:rpm=1").ends(3);
    let counted = top.shows(0, &["\u{1b}[1mKEY", "full:rpm  1        0"]);

    server.kill();
    let away = usage.shows(first, &["the last list, trying again: cannot reach http://", "████████░░  80%"]);
    top.shows(counted, &["the last list, trying again: cannot reach http://"]);
    let server = serve(folder.path(), &address);
    server.reserve("--key half:rpm=1");
    usage.shows(away, &["█████████░  90%"]);
}

#[test]
fn followed_decisions_are_lines_in_colour_with_the_time_of_the_day() {
    let folder = tempfile::tempdir().unwrap();
    let address = free();
    let server = serve(folder.path(), &address);
    server.line("limits put --key a:rpm --kind rolling --capacity 1 --window 3600").ends(0);
    let follow = Terminal::run(&server.url(), "decisions --follow");
    let deny = |server: &Server, job: &str| {
        server.line(&format!("reserve --key a:rpm=2 --job {job}")).ends(3);
    };
    deny(&server, "first");
    let first = follow.shows(0, &["\u{1b}[1mAT", "\u{1b}[31m", "denied", "first", "a:rpm (2 asked, 1 of 1 available)"]);
    assert!(!follow.written.lock().unwrap().contains("ago"), "the distance takes too much of a line");
    server.kill();
    follow.shows(first, &["trying again"]);
    let server = serve(folder.path(), &address);
    deny(&server, "second");
    follow.shows(first, &["second"]);
    let written = follow.written.lock().unwrap();
    assert_eq!(written.matches("OUTCOME").count(), 1, "one header: {written}");
}
