//! The oracles that need a baseline.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::task::JoinHandle;

use super::isolation::is_isolated;
use super::machine::{Process, descendants, descriptors, peak_bytes, reset_peak, resident_bytes};
use super::rig::Rig;
use super::server::{Server, text};
use super::upstream::{Transport, Upstream};
use super::waiting::SECOND;

/// How much memory a hostile upstream may cost, in bytes (O2).
const MEMORY: u64 = 64 << 20;
/// How long children, descriptors and tasks may take to be gone (O4).
const LEAKS: Duration = Duration::from_secs(10);
/// How often the control tool is called.
const BEAT: Duration = Duration::from_millis(250);

/// A healthy control server beside the hostile one, called all the time, and what the process had in use before.
///
/// Only in an [`isolated`](super::isolated) test: elsewhere other tests would be counted. Start it when the rig is
/// open and before the hostile server is there; call [`finish`](Self::finish) when that one was removed.
#[derive(Debug)]
pub(crate) struct Watch {
    /// The healthy server beside the hostile one.
    pub(crate) control: Server,
    rig_ada: caliber::core::principal::Principal,
    memory: u64,
    baseline: Baseline,
    stop: Arc<AtomicBool>,
    beats: JoinHandle<u32>,
    _upstream: Upstream,
}

#[derive(Debug)]
struct Baseline {
    children: usize,
    descriptors: BTreeMap<u32, String>,
    tasks: usize,
}

impl Watch {
    /// Starts the control server and takes the baseline.
    pub(crate) async fn start(rig: &Rig) -> Self {
        assert!(
            is_isolated(),
            "a watch would count what other tests do; use `isolated`"
        );
        let upstream = Upstream::start(Transport::Stdio, &[]).await;
        let control = rig.admit("control", upstream.endpoint()).await;
        // Once before anything is counted, so that what is made on first use is there.
        assert_alive(&control, &rig.ada).await;
        assert_alive(&control, &rig.ada).await;
        let stop = Arc::new(AtomicBool::new(false));
        let beats = tokio::spawn({
            let (control, ada, stop) = (control.clone(), rig.ada.clone(), Arc::clone(&stop));
            async move {
                let mut count = 0;
                while !stop.load(Ordering::Relaxed) {
                    assert_alive(&control, &ada).await;
                    count += 1;
                    tokio::time::sleep(BEAT).await;
                }
                count
            }
        });
        let baseline = Baseline::take();
        reset_peak();
        Self {
            control,
            rig_ada: rig.ada.clone(),
            memory: resident_bytes(),
            baseline,
            stop,
            beats,
            _upstream: upstream,
        }
    }

    /// O1: the control tool and health answer within a second, now.
    pub(crate) async fn assert_alive(&self) {
        assert_alive(&self.control, &self.rig_ada).await;
    }

    /// O1, O2 and O4: the control server answered all the time and still does, memory did not grow by more than
    /// 64 MiB at any time, and children, descriptors and tasks are back to the baseline within 10 s. Remove the
    /// hostile server before: an open session is no leak.
    pub(crate) async fn finish(self) {
        self.assert_alive().await;
        self.stop.store(true, Ordering::Relaxed);
        let beats = self.beats.await.expect("the control server answers all the time");
        assert!(beats > 0, "the control server was never called");
        let growth = peak_bytes().saturating_sub(self.memory);
        assert!(growth <= MEMORY, "memory grew by {growth} bytes at its peak");
        let end = Instant::now() + LEAKS;
        while let Some(leak) = self.baseline.leak() {
            assert!(
                Instant::now() < end,
                "after {LEAKS:?} there is still more than before: {leak}"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Baseline {
    fn take() -> Self {
        Self {
            children: children().len(),
            descriptors: descriptors(),
            tasks: tasks(),
        }
    }

    /// What there is now and was not before.
    fn leak(&self) -> Option<String> {
        let children = children();
        if children.len() > self.children {
            return Some(format!(
                "{} children instead of {}: {children:#?}",
                children.len(),
                self.children
            ));
        }
        let open = descriptors();
        if open.len() > self.descriptors.len() {
            let new: Vec<_> = open
                .iter()
                .filter(|(number, _)| !self.descriptors.contains_key(number))
                .collect();
            return Some(format!(
                "{} descriptors instead of {}: {new:?}",
                open.len(),
                self.descriptors.len()
            ));
        }
        let tasks = tasks();
        // The beats were one task of the baseline's.
        (tasks > self.tasks).then(|| format!("{tasks} tasks instead of {}", self.tasks))
    }
}

fn children() -> Vec<Process> {
    descendants(std::process::id())
}

fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

async fn assert_alive(control: &Server, caller: &caliber::core::principal::Principal) {
    let call = async {
        control.caliber.ping().await.expect("the store answers");
        control.call(caller, "echo", json!({ "value": "alive" })).await
    };
    match tokio::time::timeout(SECOND, call).await {
        Ok(answer) => assert_eq!(text(&answer.expect("the control server answers")), "alive"),
        Err(_) => panic!("the control server and health do not answer within a second"),
    }
}
