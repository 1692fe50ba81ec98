//! Network addresses: what kind each is, and which may be dialled for which host.
//!
//! Readiness judges by these rules before a server is used, and the gateway dials by them. Both must be given the
//! same [`AddressRules`], so that the address that was checked is the address that is dialled.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use url::{Host, Url};

use crate::error::{Error, Result};
use crate::text::shown;

/// The most networks of one [`Sidecar`].
pub const SIDECAR_NETWORKS: usize = 16;

/// The kind of a network address, after the IANA registries of special-purpose addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AddressCategory {
    /// Reachable from everywhere, and no special purpose.
    Public,
    /// This machine: `127.0.0.0/8`, `::1`.
    Loopback,
    /// A private network: `10.0.0.0/8`, `172.16.0.0/12`, `192.168.0.0/16`, `fc00::/7`, `fec0::/10`.
    Private,
    /// The local link: `169.254.0.0/16`, `fe80::/10`.
    LinkLocal,
    /// Shared by the customers of a carrier: `100.64.0.0/10`.
    Cgnat,
    /// No address, which some systems read as this machine: `0.0.0.0/8`, `::`.
    Unspecified,
    /// A group: `224.0.0.0/4`, `ff00::/8`.
    Multicast,
    /// Documentation, benchmarks, relays, broadcast, and what nobody has been given.
    Reserved,
    /// Where a cloud hands out the credentials of a machine. Never dialled, whatever the settings say.
    Metadata,
}

impl AddressCategory {
    /// Every category.
    pub const ALL: [Self; 9] = [
        Self::Public,
        Self::Loopback,
        Self::Private,
        Self::LinkLocal,
        Self::Cgnat,
        Self::Unspecified,
        Self::Multicast,
        Self::Reserved,
        Self::Metadata,
    ];

    /// The word, as in settings.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Loopback => "loopback",
            Self::Private => "private",
            Self::LinkLocal => "link_local",
            Self::Cgnat => "cgnat",
            Self::Unspecified => "unspecified",
            Self::Multicast => "multicast",
            Self::Reserved => "reserved",
            Self::Metadata => "metadata",
        }
    }
}

impl fmt::Display for AddressCategory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl FromStr for AddressCategory {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|category| category.as_str() == text)
            .ok_or_else(|| {
                let words = Self::ALL.map(Self::as_str).join(", ");
                Error::invalid(
                    "blocked",
                    format!("{} is no category of addresses; use {words}", shown(text)),
                )
            })
    }
}

/// The kind of `address`. An IPv4 address inside an IPv6 one counts as what it is.
///
/// ```
/// use caliber_core::address::{AddressCategory, address_category};
/// assert_eq!(address_category("::ffff:127.0.0.1".parse().unwrap()), AddressCategory::Loopback);
/// ```
pub fn address_category(address: IpAddr) -> AddressCategory {
    match address {
        IpAddr::V4(address) => category_v4(address),
        IpAddr::V6(address) => category_v6(address),
    }
}

/// Where clouds hand out credentials: the common address (AWS, Azure, Google and others), tasks and pods of AWS,
/// Tencent, Alibaba, Oracle, and the host of an Azure machine.
const METADATA_V4: [Ipv4Addr; 7] = [
    Ipv4Addr::new(169, 254, 169, 254),
    Ipv4Addr::new(169, 254, 170, 2),
    Ipv4Addr::new(169, 254, 170, 23),
    Ipv4Addr::new(169, 254, 0, 23),
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(192, 0, 0, 192),
    Ipv4Addr::new(168, 63, 129, 16),
];

/// The same over IPv6: machines and pods of AWS, machines of Google.
const METADATA_V6: [Ipv6Addr; 3] = [
    Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x23),
    Ipv6Addr::new(0xfd20, 0x00ce, 0, 0, 0, 0, 0, 0x254),
];

fn category_v4(address: Ipv4Addr) -> AddressCategory {
    if METADATA_V4.contains(&address) {
        return AddressCategory::Metadata;
    }
    match address.octets() {
        [0, ..] => AddressCategory::Unspecified,
        [127, ..] => AddressCategory::Loopback,
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => AddressCategory::Private,
        [169, 254, ..] => AddressCategory::LinkLocal,
        [100, 64..=127, ..] => AddressCategory::Cgnat,
        // Protocol assignments, the three documentation networks, the relay of 6to4, benchmarks.
        [192, 0, 0 | 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => AddressCategory::Reserved,
        [192, 88, 99, _] | [198, 18..=19, ..] => AddressCategory::Reserved,
        [224..=239, ..] => AddressCategory::Multicast,
        [240..=255, ..] => AddressCategory::Reserved,
        _ => AddressCategory::Public,
    }
}

fn category_v6(address: Ipv6Addr) -> AddressCategory {
    if METADATA_V6.contains(&address) {
        return AddressCategory::Metadata;
    }
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => AddressCategory::Unspecified,
        [0, 0, 0, 0, 0, 0, 0, 1] => AddressCategory::Loopback,
        // Compatible (RFC 4291 §2.5.5.1), given up long ago: no public address is written so.
        [0, 0, 0, 0, 0, 0, high, low] => match category_v4(embedded(high, low)) {
            AddressCategory::Public => AddressCategory::Reserved,
            inner => inner,
        },
        // Mapped (RFC 4291 §2.5.5.2), translated (RFC 2765 §2.1), NAT64 (RFC 6052 §2.1), 6to4 (RFC 3056).
        [0, 0, 0, 0, 0, 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x2002, high, low, ..] => category_v4(embedded(high, low)),
        // Teredo (RFC 4380 §4): the relay in the open, the client with every bit turned.
        [0x2001, 0, relay_high, relay_low, _, _, high, low] => match category_v4(embedded(!high, !low)) {
            AddressCategory::Public => category_v4(embedded(relay_high, relay_low)),
            client => client,
        },
        // The rest of the protocol assignments, and documentation.
        [0x2001, 0..=0x1ff, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => AddressCategory::Reserved,
        // ISATAP (RFC 5214 §6.1) inside any global prefix.
        [0x2000..=0x3fff, _, _, _, 0 | 0x200, 0x5efe, high, low] => category_v4(embedded(high, low)),
        [0x2000..=0x3fff, ..] => AddressCategory::Public,
        [0xfc00..=0xfdff, ..] | [0xfec0..=0xfeff, ..] => AddressCategory::Private,
        [0xfe80..=0xfebf, ..] => AddressCategory::LinkLocal,
        [0xff00..=0xffff, ..] => AddressCategory::Multicast,
        // Also NAT64 with a prefix of one's own (RFC 8215), whose layout cannot be told from outside.
        _ => AddressCategory::Reserved,
    }
}

fn embedded(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(high) << 16 | u32::from(low))
}

/// Which addresses may be dialled for which host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AddressRules {
    /// The categories that are not dialled. Default: all but `public`. [`AddressCategory::Metadata`] is never
    /// dialled, also when it is not named here.
    pub blocked: BTreeSet<AddressCategory>,
    /// The services beside caliber whose isolation the operator attests. Default: none.
    pub sidecars: Vec<Sidecar>,
}

impl Default for AddressRules {
    fn default() -> Self {
        let blocked = AddressCategory::ALL.into_iter();
        Self {
            blocked: blocked
                .filter(|category| *category != AddressCategory::Public)
                .collect(),
            sidecars: Vec::new(),
        }
    }
}

impl AddressRules {
    /// Whether `address` may be dialled for `url`. Every address of a host has to pass. The first rule that fits
    /// the host decides:
    ///
    /// 1. a metadata address is refused;
    /// 2. a sidecar is dialled at the addresses that are attested for it, and at no other;
    /// 3. a host that says loopback ([`is_loopback_host`]) is dialled at loopback, and nowhere else;
    /// 4. any other host is dialled where the category is not blocked. A public name that resolves to loopback
    ///    is therefore refused.
    ///
    /// # Errors
    ///
    /// The category that stands against it.
    pub fn check(&self, url: &Url, address: IpAddr) -> std::result::Result<(), AddressCategory> {
        let category = address_category(address);
        let permitted = if category == AddressCategory::Metadata {
            false
        } else if let Some(sidecar) = self.sidecar(url) {
            sidecar.networks.iter().any(|network| network.contains(&address))
        } else if is_loopback_host(url) {
            category == AddressCategory::Loopback
        } else {
            !self.blocked.contains(&category)
        };
        if permitted { Ok(()) } else { Err(category) }
    }

    /// The attested service that `url` names, if it is one.
    pub fn sidecar(&self, url: &Url) -> Option<&Sidecar> {
        self.sidecars.iter().find(|sidecar| sidecar.is_at(url))
    }
}

/// Whether the host of `url` says that it is this machine: `localhost`, `127.0.0.0/8` or `::1`, and no other
/// spelling of them.
pub fn is_loopback_host(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// A service beside caliber whose isolation the operator attests: exactly one scheme, host and port, at
/// addresses of the networks that are named.
///
/// ```
/// let sidecar: caliber_core::address::Sidecar = "http://mcp-db:8101 172.18.0.0/16".parse().unwrap();
/// assert!(sidecar.is_at(&"http://mcp-db:8101/mcp".parse().unwrap()));
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Sidecar {
    origin: Url,
    networks: Vec<IpNet>,
}

impl Sidecar {
    /// Whether `url` is at the scheme, host and port of this service.
    pub fn is_at(&self, url: &Url) -> bool {
        self.origin.scheme() == url.scheme()
            && self.origin.host() == url.host()
            && self.origin.port_or_known_default() == url.port_or_known_default()
    }
}

impl FromStr for Sidecar {
    type Err = Error;

    /// Reads an origin and one or more networks, with white space between them.
    fn from_str(text: &str) -> Result<Self> {
        let problem = |what: &str| {
            Error::invalid(
                "sidecars",
                format!(
                    "{} {what}; write it as `http://host:port 172.18.0.0/16`",
                    shown(text)
                ),
            )
        };
        let mut words = text.split_ascii_whitespace();
        let origin = words
            .next()
            .and_then(|word| Url::parse(word).ok())
            .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
            .ok_or_else(|| problem("does not begin with an http or https origin"))?;
        let bare = origin.path() == "/" && origin.query().is_none() && origin.fragment().is_none();
        if !bare || !origin.username().is_empty() || origin.password().is_some() {
            return Err(problem("holds more than scheme, host and port"));
        }
        let networks = words.map(str::parse).collect::<Result<Vec<IpNet>, _>>();
        let networks = networks.map_err(|_| problem("names something that is no network"))?;
        if networks.is_empty() || networks.len() > SIDECAR_NETWORKS {
            return Err(problem(&format!(
                "names {} networks, and needs 1 to {SIDECAR_NETWORKS}",
                networks.len()
            )));
        }
        Ok(Self { origin, networks })
    }
}

impl TryFrom<String> for Sidecar {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Sidecar> for String {
    fn from(sidecar: Sidecar) -> Self {
        sidecar.to_string()
    }
}

impl fmt::Display for Sidecar {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.origin.origin().ascii_serialization())?;
        self.networks
            .iter()
            .try_for_each(|network| write!(formatter, " {network}"))
    }
}

impl fmt::Debug for Sidecar {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Sidecar({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use AddressCategory::*;

    #[test]
    fn every_special_network_has_its_category_from_the_first_to_the_last_address() {
        for (category, addresses) in [
            (Unspecified, &["0.0.0.0", "0.255.255.255", "::"][..]),
            (Loopback, &["127.0.0.1", "127.0.0.0", "127.255.255.255", "::1"]),
            (
                Private,
                &[
                    "10.0.0.0",
                    "10.255.255.255",
                    "172.16.0.0",
                    "172.31.255.255",
                    "192.168.0.0",
                    "192.168.255.255",
                    "fc00::",
                    "fdff:ffff::1",
                    "fec0::1",
                ],
            ),
            (
                LinkLocal,
                &["169.254.0.0", "169.254.255.255", "fe80::1", "febf::1"],
            ),
            (Cgnat, &["100.64.0.0", "100.127.255.255"]),
            (Multicast, &["224.0.0.1", "239.255.255.255", "ff02::1"]),
            (
                Reserved,
                &[
                    "192.0.0.1",
                    "192.0.2.1",
                    "198.51.100.1",
                    "203.0.113.1",
                    "192.88.99.1",
                    "198.18.0.0",
                    "198.19.255.255",
                    "240.0.0.0",
                    "255.255.255.255",
                    "100::1",
                    "2001:2::1",
                    "2001:1ff::1",
                    "2001:db8::1",
                    "3fff::1",
                    "3fff:fff::1",
                    "64:ff9b:1::808:808",
                    "5f00::1",
                    "4000::1",
                    "::8.8.8.8",
                ],
            ),
            (
                Metadata,
                &[
                    "169.254.169.254",
                    "169.254.170.2",
                    "100.100.100.200",
                    "168.63.129.16",
                    "fd00:ec2::254",
                    "fd20:ce::254",
                ],
            ),
            (
                Public,
                &[
                    "1.1.1.1",
                    "8.8.8.8",
                    "9.255.255.255",
                    "11.0.0.0",
                    "126.255.255.255",
                    "128.0.0.0",
                    "172.15.255.255",
                    "172.32.0.0",
                    "169.253.255.255",
                    "169.255.0.0",
                    "100.63.255.255",
                    "100.128.0.0",
                    "192.0.1.0",
                    "192.167.255.255",
                    "198.17.255.255",
                    "198.20.0.0",
                    "223.255.255.255",
                    "2606:4700:4700::1111",
                    "2001:200::1",
                    "2001:4860:4860::8888",
                    "3fff:1000::1",
                ],
            ),
        ] {
            for address in addresses {
                assert_eq!(address_category(address.parse().unwrap()), category, "{address}");
            }
        }
    }

    #[test]
    fn an_ipv4_address_cannot_hide_inside_an_ipv6_one() {
        for (inner, category) in [
            ("127.0.0.1", Loopback),
            ("10.1.2.3", Private),
            ("169.254.1.1", LinkLocal),
            ("169.254.169.254", Metadata),
            ("100.64.0.1", Cgnat),
            ("224.0.0.1", Multicast),
            ("255.255.255.255", Reserved),
            ("8.8.8.8", Public),
        ] {
            let octets = inner.parse::<Ipv4Addr>().unwrap().octets();
            let [high, low] = [[octets[0], octets[1]], [octets[2], octets[3]]].map(u16::from_be_bytes);
            let wrapped = [
                Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, high, low),
                Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, high, low),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x2002, high, low, 1, 0, 0, 0, 1),
                // Teredo, once as the client and once as the relay.
                Ipv6Addr::new(0x2001, 0, 0x0808, 0x0808, 0, 0, !high, !low),
                Ipv6Addr::new(0x2001, 0, high, low, 0, 0, !0x0808, !0x0808),
                Ipv6Addr::new(0x2606, 1, 2, 3, 0, 0x5efe, high, low),
                Ipv6Addr::new(0x2606, 1, 2, 3, 0x200, 0x5efe, high, low),
            ];
            for address in wrapped {
                assert_eq!(address_category(address.into()), category, "{inner} as {address}");
            }
            let compatible = address_category(Ipv6Addr::new(0, 0, 0, 0, 0, 0, high, low).into());
            assert_eq!(compatible, if category == Public { Reserved } else { category });
        }
    }

    fn check(rules: &AddressRules, url: &str, address: &str) -> std::result::Result<(), AddressCategory> {
        rules.check(&url.parse().unwrap(), address.parse().unwrap())
    }

    #[test]
    fn a_host_is_dialled_where_it_says_it_is() {
        let rules = AddressRules::default();
        assert_eq!(check(&rules, "https://example.com", "1.1.1.1"), Ok(()));
        assert_eq!(check(&rules, "https://example.com", "127.0.0.1"), Err(Loopback));
        assert_eq!(check(&rules, "https://example.com", "10.0.0.1"), Err(Private));
        assert_eq!(check(&rules, "http://localhost:1", "127.0.0.1"), Ok(()));
        assert_eq!(check(&rules, "http://LOCALHOST", "::1"), Ok(()));
        assert_eq!(check(&rules, "http://localhost", "1.1.1.1"), Err(Public));
        assert_eq!(check(&rules, "http://127.0.0.2", "127.0.0.2"), Ok(()));
        assert_eq!(check(&rules, "http://[::1]", "::1"), Ok(()));
        assert_eq!(
            check(&rules, "http://[::ffff:127.0.0.1]", "::ffff:127.0.0.1"),
            Err(Loopback)
        );
        assert_eq!(check(&rules, "http://localhost.", "127.0.0.1"), Err(Loopback));
        assert_eq!(check(&rules, "http://0.0.0.0", "0.0.0.0"), Err(Unspecified));
    }

    #[test]
    fn metadata_is_out_of_reach_of_every_setting() {
        let rules = AddressRules {
            blocked: BTreeSet::new(),
            sidecars: vec!["http://sidecar:80 0.0.0.0/0".parse().unwrap()],
        };
        assert_eq!(check(&rules, "http://example.com", "10.0.0.1"), Ok(()));
        for url in ["http://example.com", "http://sidecar", "http://169.254.169.254"] {
            assert_eq!(check(&rules, url, "169.254.169.254"), Err(Metadata), "{url}");
            assert_eq!(
                check(&rules, url, "::ffff:169.254.169.254"),
                Err(Metadata),
                "{url}"
            );
        }
    }

    #[test]
    fn a_sidecar_is_its_scheme_host_port_and_networks() {
        let rules = AddressRules {
            sidecars: vec!["http://mcp-db:8101 172.18.0.0/16 fd00::/8".parse().unwrap()],
            ..AddressRules::default()
        };
        assert_eq!(check(&rules, "http://mcp-db:8101/mcp", "172.18.0.3"), Ok(()));
        assert_eq!(check(&rules, "http://mcp-db:8101/mcp", "fd00::3"), Ok(()));
        for (url, address) in [
            ("http://mcp-db:8101", "172.19.0.3"),
            ("http://mcp-db:8102", "172.18.0.3"),
            ("https://mcp-db:8101", "172.18.0.3"),
            ("http://mcp-db2:8101", "172.18.0.3"),
        ] {
            assert_eq!(check(&rules, url, address), Err(Private), "{url} {address}");
        }
        assert_eq!(
            check(&rules, "http://mcp-db:8101", "1.1.1.1"),
            Err(Public),
            "outside what is attested"
        );
    }

    #[test]
    fn sidecars_are_read_strictly() {
        let text = "http://mcp-db:8101 172.18.0.0/16 fd00::/8";
        let sidecar: Sidecar = text.parse().unwrap();
        assert_eq!(sidecar.to_string(), text);
        assert_eq!(serde_json::to_value(&sidecar).unwrap(), text);
        for wrong in [
            "",
            "mcp-db",
            "http://mcp-db:8101",
            "http://mcp-db:8101/mcp 10.0.0.0/8",
            "http://mcp-db:8101?x 10.0.0.0/8",
            "http://user@mcp-db:8101 10.0.0.0/8",
            "ftp://mcp-db:8101 10.0.0.0/8",
            "http://mcp-db:8101 10.0.0.0/33",
            "http://mcp-db:8101 everywhere",
        ] {
            let error = wrong.parse::<Sidecar>().unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::Invalid, "{wrong}");
        }
    }

    #[test]
    fn categories_are_read_by_their_words() {
        for category in AddressCategory::ALL {
            assert_eq!(category.as_str().parse::<AddressCategory>().unwrap(), category);
            assert_eq!(serde_json::to_value(category).unwrap(), category.as_str());
        }
        assert!("intranet".parse::<AddressCategory>().is_err());
    }
}
