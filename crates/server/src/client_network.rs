//! The network of a client: what bounds per address count as one.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// Prefix length of an IPv6 network, in bits: one customer usually has a whole /64.
const NETWORK_BITS: u32 = 64;

/// An IPv4 address or an IPv6 network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClientNetwork(IpAddr);

impl ClientNetwork {
    pub(crate) fn of(address: IpAddr) -> ClientNetwork {
        match address.to_canonical() {
            IpAddr::V6(address) => {
                let network = u128::from(address) >> (128 - NETWORK_BITS) << (128 - NETWORK_BITS);
                ClientNetwork(Ipv6Addr::from(network).into())
            }
            address @ IpAddr::V4(_) => ClientNetwork(address),
        }
    }
}

impl fmt::Display for ClientNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(address) => write!(f, "{address}"),
            IpAddr::V6(address) => write!(f, "{address}/{NETWORK_BITS}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_a_network_of_ipv6_is_one_address_and_ipv4_is_the_same_in_either_form() {
        let network = |text: &str| ClientNetwork::of(text.parse().unwrap());
        assert_eq!(network("2001:db8:1:2::1"), network("2001:db8:1:2:ffff:ffff:ffff:ffff"));
        assert_ne!(network("2001:db8:1:2::1"), network("2001:db8:1:3::1"));
        assert_eq!(network("2001:db8:1:2::1").to_string(), "2001:db8:1:2::/64");
        assert_eq!(network("::ffff:192.0.2.7"), network("192.0.2.7"));
        assert_ne!(network("192.0.2.7"), network("192.0.2.8"));
    }
}
