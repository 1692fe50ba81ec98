//! Everything that can be set about the HTTP API, with its default and its unit.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use caliber_core::json::JsonLimits;
use caliber_core::text::shown;
use http::HeaderName;
use ipnet::IpNet;

use crate::error::{Error, Result};

/// The header that names the project of a request.
pub const PROJECT_HEADER: &str = "x-caliber-project";

/// The settings of the HTTP API.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// Where the routes stand; default `/ajax-api/2.0/mlflow/caliber`.
    pub prefix: ApiPrefix,
    /// Whether a request must say who makes it; default [`Authentication::Required`].
    pub authentication: Authentication,
    /// A proxy that has authenticated the caller already; default none.
    pub trusted_identity: Option<TrustedIdentity>,
    /// The hosts that a request may be addressed to, as in its `Host` header: `name` for every port, `name:port`
    /// for one, `*` for whatever comes. Default `localhost`, `127.0.0.1` and `[::1]`; a server that others
    /// reach needs its own names here. It keeps web pages from reaching the API through a name that they control.
    pub allowed_hosts: Vec<String>,
    /// The origins of web pages that may call the API besides its own, such as `https://console.example.com`;
    /// default none.
    pub allowed_origins: Vec<String>,
    /// The largest request body, in bytes; default 4 MiB.
    pub body_bytes: usize,
    /// The deepest nesting of a request body; default 64, at most 127.
    pub json_depth: usize,
    /// The largest head of a request (its target and headers together), in bytes; default 32 KiB, at least 8 KiB.
    pub header_bytes: usize,
    /// The longest wait for the whole head of a request, from the moment the connection is ready for it; default
    /// 20 s. It ends idle connections too: a proxy in front should let go of its own earlier.
    pub header_timeout: Duration,
    /// The longest wait for the whole body of a request; default 20 s.
    pub body_timeout: Duration,
    /// The longest work on a request; default 60 s. Calls of tools have their own deadline, which may be up to
    /// an hour; this comes on top of it.
    pub request_timeout: Duration,
    /// How long a client may leave an answer unread before its connection is dropped; default 20 s.
    pub write_timeout: Duration,
    /// The most open connections; default 1,024. Further ones wait to be accepted.
    pub max_connections: usize,
    /// The most requests of one source at once; default 256. A source is an address, or, behind a trusted proxy,
    /// the subject that the proxy names.
    pub max_requests_per_source: usize,
    /// How long requests may go on after the server was told to end; default 10 s.
    pub grace: Duration,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            prefix: ApiPrefix::default(),
            authentication: Authentication::Required,
            trusted_identity: None,
            allowed_hosts: ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned).to_vec(),
            allowed_origins: Vec::new(),
            body_bytes: 4 << 20,
            json_depth: 64,
            header_bytes: 32 << 10,
            header_timeout: Duration::from_secs(20),
            body_timeout: Duration::from_secs(20),
            request_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(20),
            max_connections: 1_024,
            max_requests_per_source: 256,
            grace: Duration::from_secs(10),
        }
    }
}

/// Whether a request must say who makes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Authentication {
    /// Every request of the API needs a token, or the identity header of a trusted proxy.
    #[default]
    Required,
    /// A request from a loopback address without credentials acts as the local administrator: for one's own
    /// machine only. [`serve`](crate::serve) refuses it on any other address.
    OpenOnLoopback,
}

/// A proxy in front that authenticates callers and names them in a header.
#[derive(Clone, Debug)]
pub struct TrustedIdentity {
    /// The header with the subject, such as `x-forwarded-user`. The proxy must set or remove it on every request.
    pub header: HeaderName,
    /// Where the proxy's own connections come from. From elsewhere the header means nothing.
    pub networks: Vec<IpNet>,
}

impl TrustedIdentity {
    /// Whether a connection from `peer` may name a subject.
    pub(crate) fn trusts(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.networks.iter().any(|network| network.contains(&peer))
    }
}

/// Where the routes stand: empty, or `/` and segments of letters, digits and `-._~`, without a `/` at the end.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiPrefix(String);

impl ApiPrefix {
    /// The text form.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for ApiPrefix {
    fn default() -> Self {
        Self("/ajax-api/2.0/mlflow/caliber".to_owned())
    }
}

impl FromStr for ApiPrefix {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        let segment = |part: &str| !matches!(part, "" | "." | "..") && part.bytes().all(plain);
        let valid = text
            .strip_prefix('/')
            .is_some_and(|rest| rest.split('/').all(segment));
        if text.len() <= 256 && (text.is_empty() || valid) {
            Ok(Self(text.to_owned()))
        } else {
            Err(Error::Setting {
                setting: "prefix",
                problem: format!("{} is no path such as `/caliber`", shown(text)),
            })
        }
    }
}

impl fmt::Display for ApiPrefix {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for ApiPrefix {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, formatter)
    }
}

impl HttpSettings {
    /// Checks what the types cannot hold.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] for the first setting that cannot be used.
    pub fn validate(&self) -> Result<()> {
        let refuse = |setting, problem: &str| {
            Err(Error::Setting {
                setting,
                problem: problem.to_owned(),
            })
        };
        if self.body_bytes == 0 {
            return refuse("body_bytes", "it must be at least 1");
        }
        if !(1..=JsonLimits::DEPTH_CEILING).contains(&self.json_depth) {
            return refuse("json_depth", "it must lie between 1 and 127");
        }
        if self.header_bytes < 8 << 10 {
            return refuse("header_bytes", "it must be at least 8192");
        }
        for (setting, duration) in [
            ("header_timeout", self.header_timeout),
            ("body_timeout", self.body_timeout),
            ("request_timeout", self.request_timeout),
            ("write_timeout", self.write_timeout),
        ] {
            if duration.is_zero() {
                return refuse(setting, "it must be longer than nothing");
            }
        }
        if self.max_connections == 0 || self.max_connections > tokio::sync::Semaphore::MAX_PERMITS {
            return refuse("max_connections", "it must be at least 1");
        }
        if self.max_requests_per_source == 0 {
            return refuse("max_requests_per_source", "it must be at least 1");
        }
        if self.allowed_hosts.is_empty() {
            return refuse(
                "allowed_hosts",
                "name at least one host, or no request can be answered",
            );
        }
        if let Some(trusted) = &self.trusted_identity {
            if trusted.networks.is_empty() {
                return refuse("trusted_identity.networks", "name the network of the proxy");
            }
            if trusted.networks.iter().any(|network| network.prefix_len() == 0) {
                return refuse(
                    "trusted_identity.networks",
                    "a network of every address would let everybody name anybody; name the proxy's own",
                );
            }
            if [http::header::AUTHORIZATION, http::header::HOST].contains(&trusted.header)
                || trusted.header.as_str() == PROJECT_HEADER
            {
                return refuse(
                    "trusted_identity.header",
                    "this header means something else already",
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_can_be_used() {
        HttpSettings::default().validate().unwrap();
        assert_eq!(
            ApiPrefix::default().as_str().parse::<ApiPrefix>().unwrap(),
            ApiPrefix::default()
        );
    }

    #[test]
    fn prefixes_are_plain_paths() {
        for text in ["", "/a", "/a/b.c/~d"] {
            assert!(text.parse::<ApiPrefix>().is_ok(), "{text}");
        }
        for text in [
            "/", "a", "/a/", "//", "/a//b", "/{x}", "/a b", "/..", "/a/../b", "/*x", "/ü",
        ] {
            assert!(text.parse::<ApiPrefix>().is_err(), "{text}");
        }
    }

    #[test]
    fn nobody_trusts_everybody() {
        let with = |network: &str| HttpSettings {
            trusted_identity: Some(TrustedIdentity {
                header: HeaderName::from_static("x-forwarded-user"),
                networks: vec![network.parse().unwrap()],
            }),
            ..HttpSettings::default()
        };
        assert!(with("10.0.0.0/8").validate().is_ok());
        assert!(with("0.0.0.0/0").validate().is_err());
        assert!(with("::/0").validate().is_err());
    }

    #[test]
    fn an_ipv4_proxy_is_known_on_a_dual_stack_listener_too() {
        let trusted = TrustedIdentity {
            header: HeaderName::from_static("x-forwarded-user"),
            networks: vec!["10.0.0.0/8".parse().unwrap()],
        };
        assert!(trusted.trusts("::ffff:10.1.2.3".parse().unwrap()));
        assert!(!trusted.trusts("11.1.2.3".parse().unwrap()));
    }
}
