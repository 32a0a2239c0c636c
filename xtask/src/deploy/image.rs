//! The image: its last stage built by buildah around a binary, and a server run in it.
//!
//! The debug binary of the tests is linked with glibc, so it gets the libraries of this machine below it. A static one, as
//! the first stage makes it, gets nothing below it.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use super::{Checked, copy, failed, has, libraries, write_failed};
use crate::run::{self, Failure};

const DOCKERFILE: &str = "deploy/Dockerfile";
/// The image with the libraries of a binary that is not static, from this machine.
const BASE: &str = "localhost/earmark-base";
const IMAGE: &str = "localhost/earmark";
/// Time for the server in the image to become ready.
const READY_MAX: Duration = Duration::from_secs(60);

pub(super) fn check(binary: &Path, scratch: &Path) -> Result<Checked, Failure> {
    if !has("buildah") {
        return Ok(Checked::Skipped("buildah is missing; apt-get install buildah".into()));
    }
    let buildah = Buildah { scratch: scratch.to_owned() };
    let libraries = libraries(binary)?;
    let runtime = if libraries.is_empty() { "scratch" } else { BASE };
    let base = scratch.join("base");
    fs::create_dir_all(&base).map_err(write_failed(&base))?;
    for library in libraries {
        copy(&library, &base.join(library.strip_prefix("/").unwrap_or(&library)))?;
    }
    let recipe = base.join("Dockerfile");
    fs::write(&recipe, "FROM scratch\nCOPY . /\n").map_err(write_failed(&recipe))?;
    if run::output(buildah.command("build").args(["--tag", BASE, "--file"]).arg(&recipe).arg(&base)).is_none() {
        return Ok(Checked::Skipped("buildah cannot build here; it needs root, or user namespaces".into()));
    }
    // The files that the first stage would have made.
    let built = scratch.join("built");
    copy(binary, &built.join("out/usr/bin/earmark"))?;
    let data = built.join("out/var/lib/earmark");
    fs::create_dir_all(&data).map_err(write_failed(&data))?;
    run::run(Command::new("chown").arg("10001:10001").arg(&data))?;
    let mut build = buildah.command("build");
    build.args(["--format", "docker", "--tag", IMAGE, "--file", DOCKERFILE]);
    build.args(["--build-arg", &format!("RUNTIME={runtime}"), "--target", "runtime"]);
    build.arg("--build-context").arg(format!("build={}", built.display())).arg(run::root());
    run::run(build.current_dir(run::root()))?;
    let container = run::output(buildah.command("from").arg(IMAGE)).ok_or_else(|| failed("no container".into()))?;
    let ready = serve(&buildah, container.trim())?;
    let kind = if runtime != BASE { "static, " } else { "" };
    Ok(Checked::Passed(format!("{kind}built; a server in it was ready after {}", run::time(ready))))
}

/// Runs a server in a container, as the user of the image, until it is ready.
fn serve(buildah: &Buildah, container: &str) -> Result<Duration, Failure> {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let port = port.map_err(|source| Failure::Start { line: "a listener".into(), source })?.port();
    let start = Instant::now();
    let mut serve = buildah.command("run");
    serve.args([container, "--", "earmark", "serve", "--log-level", "warn", "--listen", &format!("127.0.0.1:{port}")]);
    let line = run::line(&serve);
    let mut server = Running(serve.spawn().map_err(|source| Failure::Start { line, source })?);
    let server_url = format!("http://127.0.0.1:{port}");
    loop {
        let health = ["run", container, "--", "earmark", "health", "--server", &server_url];
        if run::output(buildah.command(health[0]).args(&health[1..])).is_some() {
            return Ok(start.elapsed());
        }
        let has_ended = server.0.try_wait().is_ok_and(|ended| ended.is_some());
        if has_ended || start.elapsed() > READY_MAX {
            return Err(failed(format!("{DOCKERFILE}: the server in the image does not become ready")));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// A server in a container, stopped on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // buildah passes the signal on to the server.
        _ = run::output(Command::new("kill").arg(self.0.id().to_string()));
        _ = self.0.wait();
    }
}

/// buildah with a storage of its own, which needs no file system that this machine may lack.
struct Buildah {
    scratch: PathBuf,
}

impl Buildah {
    fn command(&self, what: &str) -> Command {
        let mut command = Command::new("buildah");
        command
            .arg("--root")
            .arg(self.scratch.join("storage"))
            .arg("--runroot")
            .arg(self.scratch.join("run"))
            .arg(what);
        command.env("STORAGE_DRIVER", "vfs").env("BUILDAH_ISOLATION", "chroot");
        command
    }
}

impl Drop for Buildah {
    fn drop(&mut self) {
        _ = run::output(self.command("rm").arg("--all"));
    }
}
