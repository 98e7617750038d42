//! The alternative names in a certificate.

use std::net::IpAddr;

use x509_parser::certificate::X509CertificateParser;
use x509_parser::error::X509Error;
use x509_parser::extensions::{GeneralName, SubjectAlternativeName};
use x509_parser::nom::combinator::all_consuming;
use x509_parser::oid_registry::OID_X509_EXT_SUBJECT_ALT_NAME;
use x509_parser::prelude::FromDer as _;

/// Reads the alternative names of a certificate in DER, none when it has no such extension.
///
/// # Errors
/// When the certificate is malformed.
pub fn alternative_names(certificate: &[u8]) -> Result<Vec<GeneralName<'_>>, X509Error> {
    // Other extensions are not read.
    let parser = X509CertificateParser::new().with_deep_parse_extensions(false);
    let (_, certificate) = all_consuming(parser)(certificate)?;
    let extension = certificate.get_extension_unique(&OID_X509_EXT_SUBJECT_ALT_NAME)?;
    let Some(extension) = extension else { return Ok(Vec::new()) };
    let (_, names) = all_consuming(SubjectAlternativeName::from_der)(extension.value)?;
    match names.general_names.iter().any(is_malformed) {
        true => Err(X509Error::InvalidExtensions),
        false => Ok(names.general_names),
    }
}

fn is_malformed(name: &GeneralName<'_>) -> bool {
    match name {
        GeneralName::Invalid(..) => true,
        GeneralName::IPAddress(octets) => !matches!(octets.len(), 4 | 16),
        _ => false,
    }
}

/// Returns true if an alternative name is the one in a text: a DNS name, mail address, URI or address.
pub(super) fn is_same(name: &GeneralName<'_>, text: &str) -> bool {
    match *name {
        GeneralName::DNSName(own) | GeneralName::RFC822Name(own) | GeneralName::URI(own) => {
            own == text
        }
        GeneralName::IPAddress(own) => text.parse().is_ok_and(|address| match address {
            IpAddr::V4(address) => *own == address.octets(),
            IpAddr::V6(address) => *own == address.octets(),
        }),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rcgen::{CertificateParams, CustomExtension, KeyPair, SanType};

    fn der(params: &CertificateParams) -> Vec<u8> {
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    fn certificate() -> Vec<u8> {
        let mut params = CertificateParams::new(vec!["prometheus.example".to_owned()]).unwrap();
        params.subject_alt_names.extend([
            SanType::IpAddress("192.0.2.7".parse().unwrap()),
            SanType::IpAddress("2001:db8::7".parse().unwrap()),
            SanType::URI("spiffe://example/prometheus".try_into().unwrap()),
            SanType::Rfc822Name("ops@example".try_into().unwrap()),
        ]);
        der(&params)
    }

    /// A certificate with such an extension, beside that of its DNS names.
    fn with_extension(names: &[&str], content: &[u8]) -> Vec<u8> {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        let extension = CustomExtension::from_oid_content(&[2, 5, 29, 17], content.to_vec());
        params.custom_extensions.push(extension);
        der(&params)
    }

    fn has(names: &[GeneralName<'_>], text: &str) -> bool {
        names.iter().any(|name| is_same(name, text))
    }

    #[test]
    fn names_of_every_kind_are_found() {
        let der = certificate();
        let names = alternative_names(&der).unwrap();
        for text in [
            "prometheus.example",
            "spiffe://example/prometheus",
            "ops@example",
            "192.0.2.7",
            "2001:db8::7",
            "2001:DB8:0::7",
        ] {
            assert!(has(&names, text), "{text} in {names:?}");
        }
        for text in ["", "example", "PROMETHEUS.example", "192.0.2.70", "::ffff:192.0.2.7"] {
            assert!(!has(&names, text), "{text} in {names:?}");
        }
        assert_eq!(names.len(), 5);
    }

    #[test]
    fn a_name_of_another_kind_hides_none() {
        let other = [0xa0, 10, 6, 3, 0x55, 4, 3, 0xa0, 3, 0x0c, 1, b'x'];
        let der = with_extension(&[], &[&[0x30, 15][..], &other, &[0x82, 1, b'a']].concat());
        let names = alternative_names(&der).unwrap();
        assert!(has(&names, "a") && !has(&names, "x"), "{names:?}");
    }

    #[test]
    fn a_certificate_without_names_has_none() {
        let der = der(&CertificateParams::new(Vec::new()).unwrap());
        assert_eq!(alternative_names(&der), Ok(Vec::new()));
    }

    #[test]
    fn a_certificate_that_is_cut_or_goes_on_is_malformed() {
        let mut der = certificate();
        for length in 0..der.len() {
            assert!(alternative_names(&der[..length]).is_err(), "{length}");
        }
        der.push(0);
        assert!(alternative_names(&der).is_err());
    }

    #[test]
    fn malformed_names_are_refused_with_all_others() {
        let name = [0x82, 1, b'a'];
        assert!(alternative_names(&with_extension(&[], &[&[0x30, 3][..], &name].concat())).is_ok());
        for (what, content) in [
            ("nothing", &[][..]),
            ("no list", &[4, 3, 0x82, 1, b'a']),
            ("a list that is longer", &[0x30, 4, 0x82, 1, b'a']),
            ("a list of the greatest length", &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]),
            ("more than a list", &[0x30, 3, 0x82, 1, b'a', 0]),
            ("a name that is longer", &[0x30, 3, 0x82, 2, b'a']),
            ("a name that is no text", &[0x30, 6, 0x82, 1, b'a', 0x82, 1, 0xff]),
            ("an address of five octets", &[0x30, 10, 0x82, 1, b'a', 0x87, 5, 1, 2, 3, 4, 5]),
        ] {
            assert!(alternative_names(&with_extension(&[], content)).is_err(), "{what}");
        }
        let twice = with_extension(&["b"], &[&[0x30, 3][..], &name].concat());
        assert_eq!(alternative_names(&twice), Err(X509Error::DuplicateExtensions));
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
