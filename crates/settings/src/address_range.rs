//! Ranges of IP addresses.

use std::{fmt, net::IpAddr, str::FromStr};

/// A range of IP addresses: `10.0.0.0/8`, `fd00::/8`, or one address. An IPv4 address inside an IPv6
/// one (`::ffff:10.0.0.1`) is that IPv4 address.
///
/// ```
/// use settings::AddressRange;
///
/// let range: AddressRange = "10.1.0.0/16".parse()?;
/// assert!(range.contains("10.1.2.3".parse().unwrap()));
/// assert!(!range.contains("10.2.0.1".parse().unwrap()));
/// # Ok::<(), settings::AddressRangeError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    network: IpAddr,
    bits: u8,
}

/// Error for a text that is no range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRangeError;

impl AddressRange {
    /// Returns whether the address is in the range.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.network, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let differing = u32::from(network) ^ u32::from(address);
                differing.leading_zeros() >= u32::from(self.bits)
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let differing = u128::from(network) ^ u128::from(address);
                differing.leading_zeros() >= u32::from(self.bits)
            }
            _ => false,
        }
    }
}

fn most_bits(network: IpAddr) -> u8 {
    if network.is_ipv4() { 32 } else { 128 }
}

impl FromStr for AddressRange {
    type Err = AddressRangeError;

    fn from_str(text: &str) -> Result<Self, AddressRangeError> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let network: IpAddr = address.parse().map_err(|_| AddressRangeError)?;
        let network = network.to_canonical();
        let most = most_bits(network);
        let bits = match bits {
            None => most,
            Some(bits) if bits.bytes().all(|byte| byte.is_ascii_digit()) => bits
                .parse()
                .ok()
                .filter(|bits| *bits <= most)
                .ok_or(AddressRangeError)?,
            Some(_) => return Err(AddressRangeError),
        };
        Ok(Self { network, bits })
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.bits == most_bits(self.network) {
            self.network.fmt(f)
        } else {
            write!(f, "{}/{}", self.network, self.bits)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains(range: &str, address: &str) -> bool {
        let range: AddressRange = range.parse().unwrap();
        range.contains(address.parse().unwrap())
    }

    #[test]
    fn a_range_contains_the_addresses_with_its_leading_bits() {
        for (range, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.0"),
            ("10.0.0.4/30", "10.0.0.7", "10.0.0.8"),
            ("10.0.0.5", "10.0.0.5", "10.0.0.4"),
            ("10.0.0.5", "::ffff:10.0.0.5", "::ffff:10.0.0.6"),
            ("::ffff:10.0.0.5", "10.0.0.5", "::1"),
            ("0.0.0.0/0", "203.0.113.1", "::1"),
            ("::/0", "2001:db8::1", "203.0.113.1"),
            ("fd00::/8", "fdff::1", "fe00::1"),
            ("2001:db8::1", "2001:db8::1", "2001:db8::2"),
        ] {
            assert!(contains(range, inside), "{range} {inside}");
            assert!(!contains(range, outside), "{range} {outside}");
            let parsed: AddressRange = range.parse().unwrap();
            assert_eq!(parsed.to_string().parse(), Ok(parsed), "{range}");
        }
    }

    #[test]
    fn other_texts_are_no_ranges() {
        for text in [
            "",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "10.0.0.0/8/8",
            "10.0.0/8",
            "::/129",
            "host",
            "10.0.0.1:80",
            "[::1]",
            "*",
        ] {
            assert_eq!(
                text.parse::<AddressRange>(),
                Err(AddressRangeError),
                "{text}"
            );
        }
    }
}
