//! Client certificates: their names, and the keys that these are bound to.

use std::collections::BTreeMap;

use earmark_core::KeyId;
use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

/// Names of one certificate that are read. A caller has few; the rest is ignored.
const NAMES_MAX: usize = 64;
/// Length of a name, in bytes: the longest DNS name is shorter, and SPIFFE limits its ids to 2,048.
const NAME_BYTES_MAX: usize = 2_048;

/// The names in a certificate that the authority of clients has signed: DNS names in lower case, and URIs. Wildcards are
/// left out, because they name no single caller. The common name is not read: browsers and proxies ignore it too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientCertificate {
    names: Vec<String>,
}

impl ClientCertificate {
    /// The names in the first certificate of a verified chain.
    pub(crate) fn read(chain: &[CertificateDer<'_>]) -> Option<ClientCertificate> {
        let certificate = EndEntityCert::try_from(chain.first()?).ok()?;
        let dns = certificate.valid_dns_names().filter(|name| !name.starts_with('*')).map(str::to_ascii_lowercase);
        let uris = certificate.valid_uri_names().map(str::to_owned);
        Some(ClientCertificate { names: dns.chain(uris).take(NAMES_MAX).collect() })
    }
}

/// The key of each client certificate, by a name in the certificate. A caller with the certificate acts as that key,
/// with its role, namespace and labels, until the key expires or is revoked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateKeys(BTreeMap<String, KeyId>);

/// A binding of a certificate that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateKeysError {
    /// The name is empty, too long, or not printable.
    #[error("{found:?}: allowed are DNS names and URIs of 1 to {NAME_BYTES_MAX} printable characters")]
    Name {
        /// The name.
        found: String,
    },
    /// The name is a wildcard.
    #[error("{found}: a wildcard names no single caller; write out the names, each with its key")]
    Wildcard {
        /// The name.
        found: String,
    },
    /// A name has two keys.
    #[error("{found}: it is bound to two keys; a certificate acts as one")]
    Twice {
        /// The name.
        found: String,
    },
}

impl CertificateKeys {
    /// Bindings of names to keys.
    ///
    /// # Errors
    /// When a name is malformed, is a wildcard, or has two keys.
    pub fn new(bindings: impl IntoIterator<Item = (String, KeyId)>) -> Result<CertificateKeys, CertificateKeysError> {
        let mut keys = BTreeMap::new();
        for (found, key) in bindings {
            let is_printable = found.bytes().all(|byte| byte.is_ascii_graphic());
            if !is_printable || !(1..=NAME_BYTES_MAX).contains(&found.len()) {
                return Err(CertificateKeysError::Name { found });
            }
            if found.starts_with('*') {
                return Err(CertificateKeysError::Wildcard { found });
            }
            // A URI is compared as it is; only DNS names ignore case.
            let name = if found.contains(':') { found.clone() } else { found.to_ascii_lowercase() };
            if keys.insert(name, key.clone()).is_some_and(|other| other != key) {
                return Err(CertificateKeysError::Twice { found });
            }
        }
        Ok(CertificateKeys(keys))
    }

    /// The key of a certificate, or why it has none.
    pub(super) fn key_of(&self, certificate: &ClientCertificate) -> Result<&KeyId, String> {
        let ClientCertificate { names } = certificate;
        let mut keys: Vec<&KeyId> = names.iter().filter_map(|name| self.0.get(name)).collect();
        keys.sort_unstable();
        keys.dedup();
        match (keys.as_slice(), names.as_slice()) {
            ([key], _) => Ok(key),
            ([], []) => {
                Err("the client certificate has no DNS name and no URI; issue one with a subjectAltName".into())
            }
            ([], names) => Err(format!(
                "the client certificate names {}, which is bound to no key (--client-certificate NAME=KEY_ID)",
                names.join(", ")
            )),
            _ => Err("the client certificate has names of several keys; issue one with the names of one".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: &str) -> KeyId {
        id.parse().unwrap()
    }

    fn certificate(names: &[&str]) -> ClientCertificate {
        ClientCertificate { names: names.iter().map(|name| (*name).to_owned()).collect() }
    }

    #[test]
    fn a_certificate_acts_as_the_one_key_that_its_names_are_bound_to() {
        let (one, other) = (key("k0123456789a"), key("k0123456789b"));
        let bound = [("Envoy.Example", &one), ("spiffe://mesh/Envoy", &one), ("other.example", &other)];
        let keys = CertificateKeys::new(bound.map(|(name, key)| (name.to_owned(), key.clone()))).unwrap();
        for (names, expected) in [
            (&["envoy.example"][..], Ok(&one)),
            (&["spiffe://mesh/Envoy"], Ok(&one)),
            (&["unknown.example", "spiffe://mesh/Envoy", "envoy.example"], Ok(&one)),
            (&["other.example"], Ok(&other)),
            (&[], Err("no DNS name and no URI")),
            (&["spiffe://mesh/envoy"], Err("names spiffe://mesh/envoy, which is bound to no key")),
            (&["sub.envoy.example"], Err("bound to no key")),
            (&["envoy.example", "other.example"], Err("names of several keys")),
        ] {
            match (keys.key_of(&certificate(names)), expected) {
                (Ok(found), expected) => assert_eq!(Ok(found), expected, "{names:?}"),
                (Err(message), Err(part)) => assert!(message.contains(part), "{message}"),
                (Err(message), Ok(_)) => panic!("{names:?}: {message}"),
            }
        }
    }

    #[test]
    fn bindings_that_cannot_be_used_are_refused() {
        let (one, other) = (key("k0123456789a"), key("k0123456789b"));
        let new = |bound: &[(&str, &KeyId)]| {
            CertificateKeys::new(bound.iter().map(|(name, key)| ((*name).to_owned(), (*key).clone())))
        };
        let mistake = |bound: &[(&str, &KeyId)]| new(bound).unwrap_err().to_string();
        assert!(mistake(&[("", &one)]).contains("allowed are DNS names and URIs"));
        assert!(mistake(&[("a b", &one)]).contains("allowed are DNS names and URIs"));
        assert!(mistake(&[("*.example", &one)]).contains("a wildcard names no single caller"));
        assert!(mistake(&[("a.example", &one), ("A.example", &other)]).contains("bound to two keys"));
        assert!(new(&[("a.example", &one), ("A.example", &one)]).is_ok());
    }
}
