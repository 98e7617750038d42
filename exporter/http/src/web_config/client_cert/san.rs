//! The alternative names in a certificate: the few parts of X.509 that are needed to find them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An alternative name.
#[derive(Debug, PartialEq, Eq)]
pub enum Name<'a> {
    /// A DNS name, mail address or URI.
    Text(&'a str),
    /// An address.
    Address(IpAddr),
}

const SEQUENCE: u8 = 0x30;
const OBJECT_ID: u8 = 0x06;
const OCTETS: u8 = 0x04;
/// The extensions in the signed part of a certificate.
const EXTENSIONS: u8 = 0xa3;
/// 2.5.29.17, subjectAltName.
const ALTERNATIVE_NAMES: [u8; 3] = [0x55, 0x1d, 0x11];

const MAIL: u8 = 0x81;
const DNS: u8 = 0x82;
const URI: u8 = 0x86;
const ADDRESS: u8 = 0x87;

/// The alternative names of a certificate in DER, none when it has no such extension, `None` when it is malformed.
pub fn alternative_names(certificate: &[u8]) -> Option<Vec<Name<'_>>> {
    let (SEQUENCE, signed, _) = element(within(certificate, SEQUENCE)?)? else { return None };
    let Some(extensions) = all(signed)?.into_iter().find(|(tag, _)| *tag == EXTENSIONS) else {
        return Some(Vec::new());
    };
    for (_, extension) in all(within(extensions.1, SEQUENCE)?)? {
        let parts = all(extension)?;
        if parts.first()? != &(OBJECT_ID, &ALTERNATIVE_NAMES[..]) {
            continue;
        }
        let (OCTETS, value) = *parts.last()? else { return None };
        return all(within(value, SEQUENCE)?)?.into_iter().filter_map(name).collect();
    }
    Some(Vec::new())
}

/// `None` for a kind of name that is not compared, `Some(None)` for a malformed one.
fn name((tag, value): (u8, &[u8])) -> Option<Option<Name<'_>>> {
    Some(match tag {
        MAIL | DNS | URI => std::str::from_utf8(value).ok().map(Name::Text),
        ADDRESS => address(value).map(Name::Address),
        _ => return None,
    })
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(octets).map(|octets| Ipv4Addr::from(octets).into());
    let sixteen = <[u8; 16]>::try_from(octets).map(|octets| Ipv6Addr::from(octets).into());
    four.or(sixteen).ok()
}

/// The content of the only element of the bytes.
fn within(bytes: &[u8], tag: u8) -> Option<&[u8]> {
    match element(bytes)? {
        (found, content, []) if found == tag => Some(content),
        _ => None,
    }
}

/// The elements in sequence: tag and content of each.
fn all(mut bytes: &[u8]) -> Option<Vec<(u8, &[u8])>> {
    let mut elements = Vec::new();
    while !bytes.is_empty() {
        let (tag, content, rest) = element(bytes)?;
        elements.push((tag, content));
        bytes = rest;
    }
    Some(elements)
}

/// Tag and content of the first element, and what follows.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, first], rest) = bytes.split_first_chunk::<2>()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rcgen::{CertificateParams, KeyPair, SanType};

    fn certificate() -> Vec<u8> {
        let mut params = CertificateParams::new(vec!["prometheus.example".to_owned()]).unwrap();
        params.subject_alt_names.extend([
            SanType::IpAddress("192.0.2.7".parse().unwrap()),
            SanType::IpAddress("2001:db8::7".parse().unwrap()),
            SanType::URI("spiffe://example/prometheus".try_into().unwrap()),
            SanType::Rfc822Name("ops@example".try_into().unwrap()),
        ]);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn names_of_every_kind_are_found() {
        let der = certificate();
        let names = alternative_names(&der).unwrap();
        for text in ["prometheus.example", "spiffe://example/prometheus", "ops@example"] {
            assert!(names.contains(&Name::Text(text)), "{text} in {names:?}");
        }
        for address in ["192.0.2.7", "2001:db8::7"] {
            assert!(names.contains(&Name::Address(address.parse().unwrap())), "{address}");
        }
        assert_eq!(names.len(), 5);
    }

    #[test]
    fn a_certificate_without_names_has_none() {
        let params = CertificateParams::new(Vec::new()).unwrap();
        let der = params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec();
        assert_eq!(alternative_names(&der), Some(Vec::new()));
    }

    #[test]
    fn a_cut_certificate_is_malformed() {
        let der = certificate();
        for length in 0..der.len() {
            assert_eq!(alternative_names(&der[..length]), None, "{length}");
        }
    }

    proptest! {
        #[test]
        fn changed_bytes_never_panic(at in 0_usize..300, byte: u8, tail in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut der = certificate();
            let at = at % der.len();
            der[at] = byte;
            let _ = alternative_names(&der);
            let _ = alternative_names(&tail);
        }
    }
}
