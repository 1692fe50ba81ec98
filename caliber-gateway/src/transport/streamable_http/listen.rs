//! The stream on which a legacy upstream tells of changes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Wire;
use crate::transport::event_stream::EventReader;

/// Bytes of one event on this stream.
const EVENT_BYTES: usize = 1 << 20;
/// A stream that lived this long was a good one.
const LIVED: Duration = Duration::from_secs(30);
/// The pause before the first new attempt; it doubles.
const PAUSE: Duration = Duration::from_secs(2);
/// Streams in a row that did not live; beyond that the upstream is left alone.
const ATTEMPTS: u32 = 6;

/// Listens until the upstream has nothing to offer. An upstream without such a stream (405) is asked once.
pub(super) async fn run(wire: Arc<Wire>, version: String) {
    let mut short_lived = 0;
    while short_lived < ATTEMPTS {
        let Some(mut response) = wire.get(Some(&version), None).await else {
            return;
        };
        let opened = Instant::now();
        // Nothing is asked on this stream, so no answer has this id.
        let mut reader = EventReader::new(EVENT_BYTES, usize::MAX);
        drop(
            wire.read_events(&mut response, &mut reader, u64::MAX, Some(&version))
                .await,
        );
        drop(response);
        if opened.elapsed() < LIVED {
            short_lived += 1;
        } else {
            short_lived = 0;
        }
        tokio::time::sleep(PAUSE * 2_u32.pow(short_lived)).await;
    }
}
