//! The flags of a node about its peers.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use clap::Args;
use earmark_admission::exposure;

use crate::failure::Failure;

/// Longest DNS name.
const HOST_BYTES_MAX: usize = 253;
const ALLOWED: &str = "allowed is HOST:PORT, such as earmark-0.earmark:7101 or 10.0.0.3:7101";

/// Founders, members and the name of this node.
#[derive(Args, Debug)]
pub(crate) struct PeerArgs {
    /// Id of this node, never used before in its cluster [default: the id in the data folder, or the one that the cluster
    /// gives]
    #[arg(long, value_name = "N", conflicts_with = "in_memory")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) node_id: Option<u64>,
    /// Address to listen on for the other nodes of the cluster, IP:PORT. Nodes need certificates (--peer-cert) beyond
    /// loopback, and on a server with keys or an issuer. A new data folder also needs --bootstrap or --join
    #[arg(long, value_name = "ADDR", conflicts_with = "in_memory", value_parser = super::address)]
    pub(crate) peer_listen: Option<SocketAddr>,
    /// Name of this node: the HOST or HOST:PORT at which the other nodes reach it, resolved for every connection. Its
    /// certificate has the host as a DNS name [default: --peer-listen]
    #[arg(long, visible_alias = "peer-name", value_name = "HOST", requires = "peer_listen")]
    #[arg(conflicts_with = "in_memory")]
    peer_advertise: Option<PeerAddress>,
    /// Founders of a new cluster, the same list on each of them, such as a,b,c: names (--peer-advertise) with or without a
    /// port. The cluster begins once all of them answer and all are empty. Other nodes, and those that come later, join
    #[arg(long, value_name = "HOST", num_args = 1.., value_delimiter = ',', requires = "peer_listen")]
    #[arg(conflicts_with_all = ["in_memory", "join"])]
    pub(crate) bootstrap: Vec<PeerAddress>,
    /// Names or addresses (--peer-advertise, --peer-listen) of nodes whose cluster to join
    #[arg(long, value_name = "HOST", num_args = 1.., value_delimiter = ',', requires = "peer_listen")]
    #[arg(conflicts_with = "in_memory")]
    pub(crate) join: Vec<PeerAddress>,
    /// File with the invitation (earmark cluster invite) that a new node with --peer-cert needs to join; or the variable
    /// EARMARK_INVITATION
    #[arg(long, value_name = "FILE", requires = "peer_listen")]
    invitation_file: Option<PathBuf>,
}

impl PeerArgs {
    /// The name of this node for its peers, if it is not the listening address.
    pub(crate) fn advertised(&self) -> Option<String> {
        self.peer_advertise.as_ref().map(|address| self.with_port(address))
    }

    /// An address with the port of `--peer-listen` unless it has its own.
    pub(crate) fn with_port(&self, address: &PeerAddress) -> String {
        let port = address.port.or(self.peer_listen.map(|listen| listen.port()));
        PeerAddress { host: address.host.clone(), port }.to_string()
    }

    pub(crate) fn all_with_port(&self, addresses: &[PeerAddress]) -> Vec<String> {
        addresses.iter().map(|address| self.with_port(address)).collect()
    }

    /// Rejects addresses that other nodes cannot reach.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let advertised = self.peer_advertise.as_ref().and_then(|address| address.port);
        let listening = self.peer_listen.map(|listen| listen.port());
        for (flag, port) in [("--peer-listen", listening), ("--peer-advertise", advertised)] {
            if port == Some(0) {
                return Err(Failure::Usage(format!(
                    "{flag}: found port 0, allowed are ports from 1, because the other nodes store the address"
                )));
            }
        }
        let is_anywhere = self.peer_listen.is_some_and(|listen| listen.ip().is_unspecified());
        if is_anywhere && self.peer_advertise.is_none() {
            let message = "--peer-listen: other nodes cannot connect to this address; name this node for them with \
                           --peer-advertise";
            return Err(Failure::Usage(message.into()));
        }
        Ok(())
    }

    /// The invitation of `--invitation-file`, or of the environment.
    pub(crate) fn invitation(&self) -> Result<Option<String>, Failure> {
        let Some(path) = &self.invitation_file else {
            let text = std::env::var("EARMARK_INVITATION").unwrap_or_default();
            return Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty()));
        };
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|error| Failure::Usage(format!("--invitation-file: {}: {error}", path.display())))?;
        if let Some(warning) = exposure(path) {
            tracing::warn!("--invitation-file: {warning}");
        }
        match text.trim() {
            "" => Err(Failure::Usage(format!("--invitation-file: {} is empty", path.display()))),
            text => Ok(Some(text.to_owned())),
        }
    }
}

/// The address of a node for its peers: a DNS name or an IP address, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerAddress {
    host: String,
    port: Option<u16>,
}

impl PeerAddress {
    /// Parses an address with a port.
    pub(crate) fn with_its_port(text: &str) -> Result<PeerAddress, String> {
        let address: PeerAddress = text.parse()?;
        address.port.map(|_| address).ok_or_else(|| format!("found no port in {text:?}, {ALLOWED}"))
    }
}

impl std::str::FromStr for PeerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<PeerAddress, String> {
        let wrong = || format!("found {text:?}, {ALLOWED}");
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(PeerAddress { host: address.ip().to_string(), port: Some(address.port()) });
        }
        if let Ok(ip) = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
            return Ok(PeerAddress { host: ip.to_string(), port: None });
        }
        let (host, port) = match text.split_once(':') {
            Some((host, port)) => (host, Some(port.parse().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let is_label = |label: &str| {
            let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
            !label.is_empty() && !label.starts_with('-') && !label.ends_with('-') && label.bytes().all(is_allowed)
        };
        let name = host.strip_suffix('.').unwrap_or(host);
        // A name of digits and dots alone is a mistyped IP address.
        let is_name = name.split('.').all(is_label) && name.bytes().any(|byte| !byte.is_ascii_digit() && byte != b'.');
        let is_right = is_name && name.len() <= HOST_BYTES_MAX;
        is_right.then(|| PeerAddress { host: name.to_ascii_lowercase(), port }).ok_or_else(wrong)
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.parse::<Ipv6Addr>() {
            Ok(ip) => write!(f, "[{ip}]")?,
            Err(_) => f.write_str(&self.host)?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_name_or_an_ip_address_with_or_without_a_port() {
        for (text, expected) in [
            ("earmark-0.earmark.svc:7101", "earmark-0.earmark.svc:7101"),
            ("Earmark-0.", "earmark-0"),
            ("10.0.0.3:7101", "10.0.0.3:7101"),
            ("10.0.0.3", "10.0.0.3"),
            ("[::1]:7101", "[::1]:7101"),
            ("::1", "[::1]"),
        ] {
            assert_eq!(text.parse::<PeerAddress>().map(|address| address.to_string()), Ok(expected.to_owned()));
        }
        for wrong in ["", ":7101", "a:", "a:x", "a:70000", "a b", "a..b", "-a", "10.0.0.300:1", "http://a:1", "a:1:2"] {
            let error = wrong.parse::<PeerAddress>().unwrap_err();
            assert!(error.contains("allowed is HOST:PORT"), "{wrong}: {error}");
        }
        assert!(PeerAddress::with_its_port("a").unwrap_err().contains("found no port"));
        assert!("a".repeat(254).parse::<PeerAddress>().is_err());
    }
}
