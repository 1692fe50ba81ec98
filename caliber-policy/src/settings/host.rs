//! Hosts of remote servers.

use std::fmt;
use std::str::FromStr;

use caliber_core::{Error, Result};
use serde::{Deserialize, Serialize};
use url::{Host, Url};

use super::problem;

/// A host that remote servers may have, on one port or on every port: `mcp.example.com`, `mcp.example.com:8443`,
/// `::1`, `[::1]:8080`.
///
/// It is exact: no wildcard, no part of a name. Names are compared as they are dialled, in lower case and ASCII.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RemoteHost {
    host: Host<String>,
    port: Option<u16>,
}

impl RemoteHost {
    /// The hosts of the default settings: `localhost`, `127.0.0.1` and `::1`, on every port.
    pub fn loopback() -> Vec<Self> {
        [
            Host::Domain("localhost".to_owned()),
            Host::Ipv4(std::net::Ipv4Addr::LOCALHOST),
            Host::Ipv6(std::net::Ipv6Addr::LOCALHOST),
        ]
        .map(|host| Self { host, port: None })
        .into()
    }

    /// Whether `url` is at this host.
    pub fn is_at(&self, url: &Url) -> bool {
        url.host().map(|host| host.to_owned()).as_ref() == Some(&self.host)
            && self
                .port
                .is_none_or(|port| url.port_or_known_default() == Some(port))
    }
}

impl FromStr for RemoteHost {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || {
            problem(
                "remote_hosts",
                text,
                "is no host; write an exact name or address, and `:port` behind it for one port only",
            )
        };
        // An IPv6 address stands bare, or in brackets.
        let bracketed = text
            .parse()
            .map(|address: std::net::Ipv6Addr| format!("[{address}]"));
        let text = bracketed.as_deref().unwrap_or(text);
        let (name, port) = match text.rsplit_once(':') {
            Some((name, port)) if !port.contains(']') => {
                let digits = port.bytes().all(|byte| byte.is_ascii_digit());
                let port = port.parse().ok().filter(|port| digits && *port > 0);
                (name, Some(port.ok_or_else(wrong)?))
            }
            _ => (text, None),
        };
        let host = Host::parse(name).map_err(|_| wrong())?;
        let plain = match &host {
            // `2130706433` and `0x7f.1` are addresses to a parser, and a trap for a reader.
            Host::Ipv4(address) => address.to_string() == name,
            Host::Ipv6(_) => true,
            Host::Domain(domain) => domain
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)),
        };
        if plain {
            Ok(Self { host, port })
        } else {
            Err(wrong())
        }
    }
}

impl TryFrom<String> for RemoteHost {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<RemoteHost> for String {
    fn from(host: RemoteHost) -> Self {
        host.to_string()
    }
}

impl fmt::Display for RemoteHost {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.host)?;
        self.port.map_or(Ok(()), |port| write!(formatter, ":{port}"))
    }
}

impl fmt::Debug for RemoteHost {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "RemoteHost({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_exact() {
        for (host, url, meant) in [
            ("example.com", "https://example.com/mcp", true),
            ("example.com", "https://EXAMPLE.com:8443/mcp", true),
            ("Example.COM", "https://example.com/mcp", true),
            ("example.com", "https://www.example.com/mcp", false),
            ("example.com", "https://example.com.evil.net/mcp", false),
            ("example.com", "https://example.com./mcp", false),
            ("example.com:8443", "https://example.com:8443/", true),
            ("example.com:8443", "https://example.com/", false),
            ("example.com:443", "https://example.com/", true),
            ("bücher.example", "https://xn--bcher-kva.example/", true),
            ("xn--bcher-kva.example", "https://bücher.example/", true),
            ("127.0.0.1", "http://127.0.0.1:9/", true),
            ("127.0.0.1", "http://127.0.0.2:9/", false),
            ("::1", "http://[::1]:9/", true),
            ("[::1]:9", "http://[::1]:9/", true),
            ("[::1]:9", "http://[::1]:8/", false),
            ("::1", "http://[::ffff:127.0.0.1]/", false),
            ("localhost", "http://localhost/", true),
            ("localhost", "http://127.0.0.1/", false),
        ] {
            let host: RemoteHost = host.parse().unwrap();
            assert_eq!(host.is_at(&url.parse().unwrap()), meant, "{host} {url}");
            let again: RemoteHost = host.to_string().parse().unwrap();
            assert_eq!(again, host);
        }
    }

    #[test]
    fn what_is_no_host_is_refused() {
        for wrong in [
            "",
            "*",
            "*.example.com",
            "https://example.com",
            "example.com/mcp",
            "user@example.com",
            "example.com:",
            "example.com:0",
            "example.com:+1",
            "example.com:65536",
            "example.com:http",
            "exa mple.com",
            "2130706433",
            "0x7f.1",
            "127.1",
            "127.0.0.1.",
            "[::1",
        ] {
            assert!(wrong.parse::<RemoteHost>().is_err(), "{wrong}");
        }
    }
}
