//! Openings of sessions and visits: those that end without an outcome, how many there are, and the end of all.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use caliber_core::clock::Deadline;
use caliber_core::gateway::{Gateway, Target};
use caliber_core::process::{ContainmentMeasure, Launch, LaunchedProcess, ProcessLauncher};
use caliber_core::reason::ReasonCode;
use caliber_core::{Error, ErrorKind, Settings};
use caliber_gateway::{GatewaySettings, LauncherSettings, PlainLauncher};

use crate::support::{House, Over, Rig, caller, calls, definition, eventually, request};

const ECHO: &str = r#"{"value":"x"}"#;

/// Does what it is told to at each launch.
#[derive(Debug)]
struct MoodyLauncher {
    inner: PlainLauncher,
    mood: Mutex<Mood>,
}

#[derive(Clone, Copy, Debug)]
enum Mood {
    Well,
    Refusing,
    Panicking,
}

impl MoodyLauncher {
    fn is(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }
}

#[async_trait]
impl ProcessLauncher for MoodyLauncher {
    async fn launch(&self, launch: Launch) -> Result<LaunchedProcess, Error> {
        let mood = *self.mood.lock().unwrap();
        match mood {
            Mood::Well => self.inner.launch(launch).await,
            Mood::Refusing => Err(Error::new(ErrorKind::Upstream, "not today")),
            Mood::Panicking => panic!("a defect of the launcher"),
        }
    }

    fn containment(&self) -> Vec<ContainmentMeasure> {
        self.inner.containment()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_opening_that_panics_makes_way_for_the_next() {
    let launcher = Arc::new(MoodyLauncher {
        inner: PlainLauncher::new(LauncherSettings::default()),
        mood: Mutex::new(Mood::Well),
    });
    let pause = Duration::from_millis(50);
    let settings = GatewaySettings {
        sessions: 1,
        breaker_failures: 1,
        breaker_pause: pause,
        ..GatewaySettings::default()
    };
    let house = House::over(settings, Settings::default(), launcher.clone());
    let rig = Rig::new(Over::Stdio, &[]).await;
    let server = house.add("defective", &rig).await;
    launcher.is(Mood::Panicking);
    for _ in 0..2 {
        let error = house.call(&server, "echo", ECHO).await.unwrap_err();
        assert_eq!(error.reason(), Some(ReasonCode::ConnectFailed), "{error}");
        assert!(error.message().contains("without an outcome"), "{error}");
    }
    // The same for the one attempt that finds out whether a server is well again.
    launcher.is(Mood::Refusing);
    let error = house.call(&server, "echo", ECHO).await.unwrap_err();
    assert!(error.message().contains("not today"), "{error}");
    launcher.is(Mood::Panicking);
    tokio::time::sleep(2 * pause).await;
    let error = house.call(&server, "echo", ECHO).await.unwrap_err();
    assert!(error.message().contains("without an outcome"), "{error}");
    launcher.is(Mood::Well);
    house.call(&server, "echo", ECHO).await.unwrap();
    house.close().await;
}

#[test]
fn an_opening_whose_runtime_ends_makes_way_for_the_next() {
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
    };
    let (first, second) = (runtime(), runtime());
    let (house, rig, server) = second.block_on(async {
        let house = House::new();
        let rig = Rig::new(Over::Http, &[]).await;
        let server = house.add("outliving", &rig).await;
        rig.control("mode=silent_start").await;
        (house, rig, server)
    });
    let caliber = house.caliber.clone();
    let waiting = request(&server, "echo", ECHO);
    first.spawn(async move { caliber.invoke(&caller("ada"), waiting).await });
    second.block_on(rig.wait_for_records("http_log", 1));
    second.block_on(eventually("the opening is under way", async || {
        rig.records("requests")
            .iter()
            .filter(|line| line.contains("\"initialize\""))
            .count()
            >= 2
    }));
    first.shutdown_timeout(Duration::from_secs(5));
    second.block_on(async {
        rig.control("mode=healthy").await;
        house.call(&server, "echo", ECHO).await.unwrap();
        house.close().await;
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_open_at_once_and_visits_are_bounded_together() {
    let settings = GatewaySettings {
        sessions: 3,
        ..GatewaySettings::default()
    };
    let house = Arc::new(House::with(settings, Settings::default()));
    let rig = Rig::new(Over::Http, &[]).await;
    let server = house.add("crowd", &rig).await;
    rig.control("mode=slow_start&seconds=2").await;
    let visit = tokio::spawn({
        let (house, server) = (Arc::clone(&house), server.clone());
        async move { house.discover(&server).await }
    });
    let initializes = async || {
        let sent = rig.records("requests");
        sent.iter().filter(|line| line.contains("\"initialize\"")).count()
    };
    eventually("the visit is under way", async || initializes().await == 2).await;
    // Nothing rests that could make room.
    let outcomes = calls(&house, &server, "echo", ECHO, 16, |index| {
        format!("caller-{index}")
    })
    .await;
    let refused = outcomes.iter().filter_map(|outcome| outcome.as_ref().err());
    let reasons: Vec<_> = refused.map(|error| error.reason().unwrap()).collect();
    assert_eq!(reasons, [ReasonCode::ServerBusy; 14]);
    assert_eq!(initializes().await, 4);
    visit.await.unwrap().unwrap();
    // What has ended gives its room back, and what rests makes room for a visit.
    rig.control("mode=healthy").await;
    house.call_as("late", &server, "echo", ECHO).await.unwrap();
    assert_eq!(house.gateway.health(&server).sessions, 3);
    house.discover(&server).await.unwrap();
    assert_eq!(house.gateway.health(&server).sessions, 2);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_opened_after_the_end() {
    let house = House::new();
    let rig = Rig::new(Over::Stdio, &[]).await;
    let server = house.add("closed", &rig).await;
    house.close().await;
    let started = rig.records("pids");
    let target = Target {
        server: Some(server.clone()),
        definition: definition("closed", rig.endpoint()).into(),
    };
    let soon = || Deadline::after(Duration::from_secs(5));
    for error in [
        house.gateway.discover(&target, soon()).await.err(),
        house.gateway.check(&target, soon()).await.err(),
        house.call(&server, "echo", ECHO).await.err(),
    ] {
        let error = error.unwrap();
        assert!(error.message().contains("shutting down"), "{error}");
    }
    assert_eq!(rig.records("pids"), started);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_stops_a_visit_that_is_under_way() {
    let house = Arc::new(House::new());
    let rig = Rig::new(Over::Stdio, &["--mode", "silent_start"]).await;
    let server = house.register(definition("silent", rig.endpoint())).await;
    let visit = tokio::spawn({
        let house = Arc::clone(&house);
        async move { house.discover(&server).await }
    });
    rig.wait_for_records("requests", 1).await;
    house.close().await;
    let ended = tokio::time::timeout(Duration::from_secs(3), visit).await;
    let error = ended.expect("it ends with the gateway").unwrap().unwrap_err();
    assert!(error.message().contains("shutting down"), "{error}");
}
