//! What operators measure: a registry of our own, nothing process-wide. It names no server, tool or person.

use std::time::Duration;

use caliber_core::invocation::InvocationOutcome;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

type Labels<const N: usize> = [(&'static str, String); N];
type NewHistogram = fn() -> Histogram;

pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<Labels<3>, Counter>,
    durations: Family<Labels<2>, Histogram, NewHistogram>,
    invocations: Family<Labels<1>, Counter>,
    pub(crate) connections: Gauge,
    pub(crate) under_way: Gauge,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("caliber");
        // 1 ms to about 2 min.
        let new_histogram: NewHistogram = || Histogram::new(exponential_buckets(0.001, 2.5, 14));
        let metrics = Self {
            requests: Family::default(),
            durations: Family::new_with_constructor(new_histogram),
            invocations: Family::default(),
            connections: Gauge::default(),
            under_way: Gauge::default(),
            registry: Registry::default(),
        };
        registry.register(
            "http_requests",
            "Requests answered, by route and status",
            metrics.requests.clone(),
        );
        registry.register_with_unit(
            "http_request_duration",
            "From the head of a request to its answer, by route",
            Unit::Seconds,
            metrics.durations.clone(),
        );
        registry.register(
            "http_requests_under_way",
            "Requests that are being worked on",
            metrics.under_way.clone(),
        );
        registry.register(
            "http_connections",
            "Open connections",
            metrics.connections.clone(),
        );
        registry.register(
            "invocations",
            "Tool calls through this API, by outcome",
            metrics.invocations.clone(),
        );
        Self { registry, ..metrics }
    }

    /// Counts an answer. `route` is a route as it is declared, never a path as it was sent.
    pub(crate) fn answered(
        &self,
        method: &http::Method,
        route: &str,
        status: http::StatusCode,
        time: Duration,
    ) {
        let method = match method.as_str() {
            known @ ("GET" | "HEAD" | "POST" | "PUT" | "PATCH" | "DELETE") => known,
            _ => "other",
        };
        let route = ("route", route.to_owned());
        let method = ("method", method.to_owned());
        let status = ("status", status.as_str().to_owned());
        self.durations
            .get_or_create(&[method.clone(), route.clone()])
            .observe(time.as_secs_f64());
        self.requests.get_or_create(&[method, route, status]).inc();
    }

    /// Counts a call that ended.
    pub(crate) fn invoked(&self, outcome: InvocationOutcome) {
        let outcome = ("outcome", outcome.as_str().to_owned());
        self.invocations.get_or_create(&[outcome]).inc();
    }

    /// Everything as OpenMetrics text.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a `String` cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}
