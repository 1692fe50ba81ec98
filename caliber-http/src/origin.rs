//! Which hosts and web pages requests may name: the guard against DNS rebinding.
//!
//! A page can make a browser send requests to any address, under a name that the page's owner controls. It
//! cannot make the browser lie about that name (`Host`) or about the page (`Origin`).

use http::header::{HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, StatusCode, Uri};

use crate::problem::{HttpReason, Problem};
use crate::settings::HttpSettings;

/// The names that are ours.
pub(crate) struct Origins {
    hosts: Vec<String>,
    any_host: bool,
    origins: Vec<String>,
}

impl Origins {
    pub(crate) fn new(settings: &HttpSettings) -> Self {
        let lower = |texts: &[String]| texts.iter().map(|text| text.to_ascii_lowercase()).collect();
        Self {
            hosts: lower(&settings.allowed_hosts),
            any_host: settings.allowed_hosts.iter().any(|host| host == "*"),
            origins: lower(&settings.allowed_origins),
        }
    }

    /// Refuses a request that is addressed to a foreign host or comes from a foreign page.
    pub(crate) fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
        let host = self.check_host(uri, headers)?;
        self.check_origin(&host, headers)
    }

    /// The host as the client wrote it, in lower case.
    fn check_host(&self, uri: &Uri, headers: &HeaderMap) -> Result<String, Problem> {
        let mut hosts = headers.get_all(HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else {
            return Err(Problem::invalid_field("header", "host", "send it once"));
        };
        let host = host
            .to_str()
            .ok()
            .and_then(|text| text.parse::<Authority>().ok())
            .filter(|authority| !authority.as_str().contains('@'))
            .ok_or_else(|| Problem::invalid_field("header", "host", "it is no host with an optional port"))?;
        // A target with a host of its own must not say something else (RFC 9112 §3.2.2).
        let named = [Some(&host), uri.authority()];
        if named
            .into_iter()
            .flatten()
            .all(|authority| self.is_ours(authority))
        {
            return Ok(host.as_str().to_ascii_lowercase());
        }
        Err(Problem::new(
            StatusCode::MISDIRECTED_REQUEST,
            HttpReason::HostRefused,
            "this server does not answer for the host that the request names; the operator can allow it",
        ))
    }

    fn is_ours(&self, authority: &Authority) -> bool {
        let whole = authority.as_str().to_ascii_lowercase();
        let host = authority.host().to_ascii_lowercase();
        self.any_host || self.hosts.iter().any(|own| *own == whole || *own == host)
    }

    fn check_origin(&self, host: &str, headers: &HeaderMap) -> Result<(), Problem> {
        let mut origins = headers.get_all(ORIGIN).iter();
        let origin = match (origins.next(), origins.next()) {
            // Programs other than browsers send none.
            (None, _) => return Ok(()),
            (Some(origin), None) => origin.to_str().unwrap_or_default().to_ascii_lowercase(),
            (Some(_), Some(_)) => String::new(),
        };
        let same = ["http://", "https://"]
            .iter()
            .filter_map(|scheme| origin.strip_prefix(scheme))
            .any(|authority| authority == host);
        if same && !self.any_host || self.origins.contains(&origin) {
            return Ok(());
        }
        Err(Problem::new(
            StatusCode::FORBIDDEN,
            HttpReason::OriginRefused,
            "pages of this origin may not call this server; the operator can allow it",
        ))
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn check(settings: &HttpSettings, target: &str, headers: &[(http::HeaderName, &str)]) -> Option<u16> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name, HeaderValue::from_str(value).unwrap());
        }
        let refused = Origins::new(settings)
            .check(&target.parse().unwrap(), &map)
            .err()?;
        Some(
            axum::response::IntoResponse::into_response(refused)
                .status()
                .as_u16(),
        )
    }

    #[test]
    fn only_our_names_are_answered() {
        let settings = HttpSettings {
            allowed_hosts: ["localhost", "[::1]", "caliber.example.com:8443"]
                .map(str::to_owned)
                .to_vec(),
            ..HttpSettings::default()
        };
        for host in [
            "localhost",
            "localhost:80",
            "LOCALHOST:1",
            "[::1]",
            "[::1]:80",
            "caliber.example.com:8443",
        ] {
            assert_eq!(check(&settings, "/", &[(HOST, host)]), None, "{host}");
        }
        for host in [
            "evil.example",
            "localhost.",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "caliber.example.com",
            "caliber.example.com:80",
            "0.0.0.0",
            "[::]",
        ] {
            assert_eq!(check(&settings, "/", &[(HOST, host)]), Some(421), "{host}");
        }
        for host in ["localhost@evil.example", "", "a b", "evil@localhost"] {
            assert_eq!(check(&settings, "/", &[(HOST, host)]), Some(400), "{host}");
        }
        assert_eq!(check(&settings, "/", &[]), Some(400));
        assert_eq!(
            check(&settings, "/", &[(HOST, "localhost"), (HOST, "localhost")]),
            Some(400)
        );
        assert_eq!(
            check(&settings, "http://evil.example/", &[(HOST, "localhost")]),
            Some(421)
        );
        assert_eq!(
            check(&settings, "http://localhost/", &[(HOST, "localhost")]),
            None
        );
    }

    #[test]
    fn only_our_pages_are_answered() {
        let settings = HttpSettings {
            allowed_origins: vec!["https://console.example.com".to_owned()],
            ..HttpSettings::default()
        };
        let origin = |origin: &str| check(&settings, "/", &[(HOST, "localhost:80"), (ORIGIN, origin)]);
        for ours in [
            "http://localhost:80",
            "https://LOCALHOST:80",
            "https://console.example.com",
        ] {
            assert_eq!(origin(ours), None, "{ours}");
        }
        for foreign in [
            "null",
            "",
            "http://localhost",
            "http://localhost:81",
            "https://evil.example",
            "http://localhost:80.evil.example",
            "http://evil@localhost:80",
            "localhost:80",
            "https://console.example.com.evil.example",
            "http://console.example.com",
            "http://localhost:80/",
        ] {
            assert_eq!(origin(foreign), Some(403), "{foreign}");
        }
        let twice = [
            (HOST, "localhost"),
            (ORIGIN, "http://localhost"),
            (ORIGIN, "http://localhost"),
        ];
        assert_eq!(check(&settings, "/", &twice), Some(403));
    }

    #[test]
    fn an_open_host_list_trusts_no_page_by_itself() {
        let settings = HttpSettings {
            allowed_hosts: vec!["*".to_owned()],
            ..HttpSettings::default()
        };
        assert_eq!(check(&settings, "/", &[(HOST, "evil.example")]), None);
        let rebound = [(HOST, "evil.example"), (ORIGIN, "http://evil.example")];
        assert_eq!(check(&settings, "/", &rebound), Some(403));
    }
}
