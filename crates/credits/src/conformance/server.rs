//! A private PostgreSQL server in a temporary folder.
//!
//! It stops and its folder is removed when it is dropped, or when this process dies in any way. This file uses only the
//! standard library, so that `cargo xtask verify` can include it.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Environment variable with the URL of a running server.
pub const URL_VARIABLE: &str = "EARMARK_POSTGRES_URL";

/// How to install PostgreSQL.
pub const HOW_TO_GET: &str = "install PostgreSQL 13 or later, such as `apt-get install postgresql` or `brew install postgresql`; its \
    initdb and pg_ctl are looked for on PATH and in /usr/lib/postgresql/*/bin";

/// Settings without fsync, for speed.
const NO_FSYNC: &str = "fsync = off\nfull_page_writes = off\n";

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A running server.
#[derive(Debug)]
pub struct Server {
    programs: PathBuf,
    folder: PathBuf,
    user: Option<&'static str>,
    /// A process that stops the server and removes the folder when this process ends.
    guard: Option<Child>,
}

/// The folder of `initdb` and `pg_ctl`: on `PATH`, or Debian's newest version.
#[must_use]
pub fn programs() -> Option<PathBuf> {
    let has_both = |folder: &Path| folder.join("initdb").is_file() && folder.join("pg_ctl").is_file();
    let path = std::env::var_os("PATH").unwrap_or_default();
    if let Some(found) = std::env::split_paths(&path).find(|folder| has_both(folder)) {
        return Some(found);
    }
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let version = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = versions.map(|entry| entry.path()).filter(|path| has_both(&path.join("bin")));
    newest.max_by_key(version).map(|path| path.join("bin"))
}

impl Server {
    /// Creates and starts a durable cluster.
    pub fn start() -> io::Result<Server> {
        Server::start_with("", &[])
    }

    /// Creates and starts a cluster without fsync. A crash may lose acknowledged commits.
    pub fn start_without_fsync() -> io::Result<Server> {
        Server::start_with(NO_FSYNC, &[])
    }

    /// Creates and starts a cluster without fsync on a local port, with TLS if a PEM certificate and key are given.
    pub fn start_on_port(port: u16, certificate_and_key: Option<[&str; 2]>) -> io::Result<Server> {
        let listen = format!("{NO_FSYNC}listen_addresses = '127.0.0.1'\nport = {port}\n");
        match certificate_and_key {
            None => Server::start_with(&listen, &[]),
            Some([certificate, key]) => {
                let files = [("server.crt", certificate), ("server.key", key)];
                Server::start_with(&format!("{listen}ssl = on\n"), &files)
            }
        }
    }

    fn start_with(more: &str, files: &[(&str, &str)]) -> io::Result<Server> {
        let programs = programs().ok_or_else(|| io::Error::other(format!("no initdb: {HOW_TO_GET}")))?;
        let name = format!("earmark-pg-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder)?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700))?;
        // The folder's owner is this user. PostgreSQL refuses to run as root.
        let is_root = fs::metadata(&folder)?.uid() == 0;
        let user = is_root.then(|| if has_user("postgres") { "postgres" } else { "nobody" });
        let mut server = Server { programs, folder, user, guard: None };
        server.guard = Some(server.watch()?);
        if let Some(user) = user {
            run(Command::new("chown").arg("-R").arg(user).arg(&server.folder))?;
        }
        let data = server.data();
        run(server.command("initdb").arg("-D").arg(&data).args([
            "--no-sync",
            "--auth=trust",
            "--username=postgres",
            "--encoding=UTF8",
            "--locale=C",
        ]))?;
        let settings = format!(
            "listen_addresses = ''\nunix_socket_directories = '{}'\nmax_connections = 200\nshared_buffers = 256MB\n{more}",
            server.folder.display()
        );
        append(&data.join("postgresql.conf"), &settings)?;
        for (name, text) in files {
            let path = data.join(name);
            fs::write(&path, text)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
            if let Some(user) = user {
                run(Command::new("chown").arg(user).arg(&path))?;
            }
        }
        server.restart()?;
        Ok(server)
    }

    /// The URL of its database.
    #[must_use]
    pub fn url(&self) -> String {
        let host: String = self.folder.display().to_string().replace('/', "%2F");
        format!("postgres://postgres@localhost/postgres?host={host}")
    }

    /// The path of its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.join(".s.PGSQL.5432")
    }

    /// Stops it without a checkpoint, like a power failure.
    pub fn stop(&self) -> io::Result<()> {
        run(self.command("pg_ctl").arg("-D").arg(self.data()).args(["-m", "immediate", "-w", "stop"]))
    }

    /// Starts it after a stop.
    pub fn restart(&self) -> io::Result<()> {
        let log = self.folder.join("log");
        let mut start = self.command("pg_ctl");
        start.arg("-D").arg(self.data()).arg("-l").arg(&log).args(["-w", "-t", "60", "start"]);
        run(&mut start).map_err(|error| {
            let log = fs::read_to_string(&log).unwrap_or_default();
            io::Error::other(format!("{error}\n{log}"))
        })
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// A PostgreSQL program, run as a user that PostgreSQL accepts.
    fn command(&self, program: &str) -> Command {
        let program = self.programs.join(program);
        let mut command = match self.user {
            None => Command::new(program),
            Some(user) if has_program("setpriv") => {
                let mut command = Command::new("setpriv");
                command.args(["--reuid", user, "--regid", group(user), "--clear-groups", "--"]).arg(program);
                command
            }
            Some(user) => {
                let mut command = Command::new("runuser");
                command.args(["-u", user, "--"]).arg(program);
                command
            }
        };
        // That user may have no access to the current folder.
        command.current_dir(&self.folder);
        command
    }

    /// A process that outlives this one for a moment. Its input ends when this process ends.
    fn watch(&self) -> io::Result<Child> {
        let script = "cat >/dev/null; [ ! -f \"$1/data/postmaster.pid\" ] || kill -QUIT \"$(head -n 1 \"$1/data/postmaster.pid\")\"; \
            i=0; while [ -f \"$1/data/postmaster.pid\" ] && [ $i -lt 50 ]; do sleep 0.1; i=$((i + 1)); done; rm -rf \"$1\"";
        let mut watch = Command::new("sh");
        watch.args(["-c", script, "sh"]).arg(&self.folder);
        // Its own process group keeps it from being killed along with this process.
        watch.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut guard) = self.guard.take() {
            drop(guard.stdin.take());
            let _ = guard.wait();
        }
    }
}

/// The URL of the server in [`URL_VARIABLE`], or of a server without fsync that this process starts.
///
/// # Errors
/// When no server is given and none can be started.
pub fn shared() -> Result<String, String> {
    static SHARED: OnceLock<Result<Server, String>> = OnceLock::new();
    if let Ok(url) = std::env::var(URL_VARIABLE) {
        return Ok(url);
    }
    let server = SHARED.get_or_init(|| Server::start_without_fsync().map_err(|error| error.to_string()));
    server.as_ref().map(Server::url).map_err(Clone::clone)
}

fn run(command: &mut Command) -> io::Result<()> {
    // The server inherits the pipes and would keep them open.
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("{command:?} failed: {status}"))) }
}

fn append(path: &Path, text: &str) -> io::Result<()> {
    let before = fs::read_to_string(path)?;
    fs::write(path, format!("{before}\n{text}"))
}

fn has_user(name: &str) -> bool {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    users.lines().any(|line| line.split(':').next() == Some(name))
}

/// The group of a user. Some systems have `nogroup` instead of a group `nobody`.
fn group(user: &'static str) -> &'static str {
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    let has_own = groups.lines().any(|line| line.split(':').next() == Some(user));
    if has_own { user } else { "nogroup" }
}

fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}
