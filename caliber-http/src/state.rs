//! What every handler shares.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Bytes;
use caliber_core::Caliber;

use crate::metrics::Metrics;
use crate::origin::Origins;
use crate::settings::HttpSettings;

/// The state of one API; cheap to clone.
#[derive(Clone)]
pub(crate) struct Api(Arc<Shared>);

struct Shared {
    caliber: Caliber,
    settings: HttpSettings,
    origins: Origins,
    metrics: Metrics,
    sources: Sources,
    document: Bytes,
}

impl Api {
    pub(crate) fn new(caliber: Caliber, settings: HttpSettings) -> Self {
        let document = crate::document::written(&settings.prefix);
        Self(Arc::new(Shared {
            caliber,
            origins: Origins::new(&settings),
            settings,
            metrics: Metrics::new(),
            sources: Sources::default(),
            document,
        }))
    }

    pub(crate) fn caliber(&self) -> &Caliber {
        &self.0.caliber
    }

    pub(crate) fn settings(&self) -> &HttpSettings {
        &self.0.settings
    }

    pub(crate) fn origins(&self) -> &Origins {
        &self.0.origins
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// The OpenAPI document as text.
    pub(crate) fn document(&self) -> Bytes {
        self.0.document.clone()
    }

    /// Counts a request of `source`, until the guard is dropped; `None` when it has too many under way.
    pub(crate) fn enter(&self, source: Source) -> Option<Underway> {
        let limit = self.0.settings.max_requests_per_source;
        self.0.sources.enter(&source, limit).then(|| Underway {
            api: self.clone(),
            source,
        })
    }

    /// Where something of the API stands.
    pub(crate) fn location(&self, path: &str) -> String {
        format!("{}{path}", self.0.settings.prefix)
    }
}

/// Whose requests are counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Source {
    /// The address that the connection comes from.
    pub(crate) peer: IpAddr,
    /// The subject that a trusted proxy names.
    pub(crate) subject: Option<Box<[u8]>>,
}

/// The requests under way by source. It holds no more entries than there are requests.
#[derive(Default)]
struct Sources(Mutex<HashMap<Source, usize>>);

impl Sources {
    fn counts(&self) -> std::sync::MutexGuard<'_, HashMap<Source, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, source: &Source, limit: usize) -> bool {
        let mut counts = self.counts();
        let count = counts.entry(source.clone()).or_insert(0);
        if *count < limit {
            *count += 1;
            true
        } else {
            false
        }
    }

    fn leave(&self, source: &Source) {
        let mut counts = self.counts();
        if let Some(count) = counts.get_mut(source) {
            *count -= 1;
            if *count == 0 {
                counts.remove(source);
            }
        }
    }
}

/// One request under way.
pub(crate) struct Underway {
    api: Api,
    source: Source,
}

impl Drop for Underway {
    fn drop(&mut self) {
        self.api.0.sources.leave(&self.source);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_counted_apart_and_forgotten() {
        let sources = Sources::default();
        let one = Source {
            peer: IpAddr::from([127, 0, 0, 1]),
            subject: None,
        };
        let other = Source {
            subject: Some(Box::from(*b"ada")),
            ..one.clone()
        };
        assert!(sources.enter(&one, 2) && sources.enter(&one, 2));
        assert!(!sources.enter(&one, 2));
        assert!(sources.enter(&other, 2));
        sources.leave(&one);
        assert!(sources.enter(&one, 2));
        sources.leave(&one);
        sources.leave(&one);
        sources.leave(&other);
        assert!(sources.counts().is_empty());
    }
}
