//! How a service is reached.

use std::time::Duration;

use caliber_core::address::is_loopback_host;
use caliber_core::sandbox::Guarantee;
use caliber_core::{Error, FieldProblem, Result};
use url::Url;

use super::token::ServiceToken;

/// How a service is reached.
#[derive(Clone, Debug)]
pub struct RemoteSettings {
    /// Its address, such as `https://sandbox.internal:8443`; `http` only on this machine.
    pub url: Url,
    /// Its token.
    pub token: ServiceToken,
    /// Root certificates to trust beside the platform's, as PEM; default: none.
    pub extra_roots: Vec<u8>,
    /// The guarantees without which nothing runs, whatever the service itself requires; default
    /// [`Guarantee::DEFAULT_REQUIRED`].
    pub required: Vec<Guarantee>,
    /// Runs tools although required guarantees are missing; every outcome says which. Default: false.
    pub allow_unenforced: bool,
    /// Runs at once; more wait here. No more than the service's places are of use. Default: 8.
    pub places: usize,
    /// Runs that may wait for a place; default 256.
    pub queue: usize,
    /// How old a report may be before it is asked for again; default 30 s.
    pub report_age: Duration,
    /// The longest time to connect; default 5 s.
    pub connect_timeout: Duration,
    /// The largest answer beside the result of a run (output, report, source), in bytes; default 8 MiB.
    pub answer_bytes: usize,
}

impl RemoteSettings {
    /// The defaults, for the service at `url`.
    pub fn new(url: Url, token: ServiceToken) -> Self {
        Self {
            url,
            token,
            extra_roots: Vec::new(),
            required: Guarantee::DEFAULT_REQUIRED.to_vec(),
            allow_unenforced: false,
            places: 8,
            queue: 256,
            report_age: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(5),
            answer_bytes: 8 << 20,
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        let mut problems = Vec::new();
        let mut problem = |field: &str, problem: &str| {
            problems.push(FieldProblem {
                field: format!("remote.{field}"),
                problem: problem.to_owned(),
            });
        };
        match self.url.scheme() {
            "https" => {}
            "http" if is_loopback_host(&self.url) => {}
            "http" => problem(
                "url",
                "must be https: tools' arguments and secrets travel over it; http is for this machine only (127.0.0.1, ::1, localhost)",
            ),
            _ => problem("url", "must begin with https://"),
        }
        if self.url.host().is_none() {
            problem("url", "must name a host");
        }
        if !self.url.username().is_empty() || self.url.password().is_some() {
            problem("url", "must not hold credentials; they belong into the token");
        }
        if self.url.query().is_some() || self.url.fragment().is_some() {
            problem("url", "must not have a query or a fragment");
        }
        if self.places == 0 {
            problem("places", "must be above zero");
        }
        match problems.is_empty() {
            true => Ok(()),
            false => Err(Error::invalid_fields(problems)),
        }
    }
}
