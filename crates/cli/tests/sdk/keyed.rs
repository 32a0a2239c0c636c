//! A client with an API key over TLS.

use earmark_client::{Actuals, ApiKey, Client, ClientOptions, Failure, Limiter, LimiterOptions, Protocol, Roots};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use tempfile::TempDir;

use crate::served::Server;
use crate::support::{job, key, rolling, soon};

/// A TLS server that requires keys, and its certificate.
struct Secure {
    server: Server,
    folder: TempDir,
}

impl Secure {
    fn start() -> Secure {
        let folder = TempDir::new().unwrap();
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let (pem, secret) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
        std::fs::write(&pem, cert.pem()).unwrap();
        std::fs::write(&secret, signing_key.serialize_pem()).unwrap();
        let [pem, secret] = [pem, secret].map(|path| path.to_str().unwrap().to_owned());
        let server = Server::start(&["--bootstrap-key", "--tls-cert", &pem, "--tls-key", &secret]);
        Secure { server, folder }
    }

    /// The printed bootstrap key.
    fn root(&self) -> String {
        let line = self.server.banner.lines().find_map(|line| line.strip_prefix("key:"));
        line.unwrap().trim().to_owned()
    }

    fn client(&self, protocol: Protocol, key: Option<&str>) -> Client {
        let port = self.server.address.rsplit(':').next().unwrap();
        let mut options = ClientOptions::of(&[format!("https://localhost:{port}")]).unwrap();
        options.protocol = protocol;
        options.roots = Roots::PemFile(self.folder.path().join("cert.pem"));
        options.key = key.map(|key| ApiKey::new(key).unwrap());
        Client::new(options).unwrap()
    }
}

pub fn run(protocol: Protocol) {
    let secure = Secure::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let root = secure.client(protocol, Some(&secure.root()));
        root.put_limit(&rolling("tokens", 100, 60), soon()).await.unwrap();
        let limiter = Limiter::new(&root, LimiterOptions::default()).unwrap();
        let guard = limiter.acquire(&job(&[("tokens", 10)]), soon()).await.unwrap();
        guard.complete(Actuals::unknown().used(key("tokens"), 7)).await.unwrap();
        assert_eq!(root.usage(&key("tokens"), soon()).await.unwrap().reserved, 7, "{protocol:?}");

        let wrong = secure.root().replace("emk_", "emk_x");
        for stranger in [None, Some(wrong.as_str())] {
            let refused = secure.client(protocol, stranger).limits(soon()).await.unwrap_err();
            let Failure::Unauthorized { message } = &refused else { panic!("{protocol:?}: {refused:?}") };
            assert_eq!(message, "the credentials are missing or not valid");
            assert!(!format!("{refused} {refused:?}").contains("emk_"), "a key is shown: {refused}");
        }
    });
}
