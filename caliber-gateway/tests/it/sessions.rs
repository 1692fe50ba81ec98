//! The pool: whose session it is, how many there are, when they end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use caliber_core::admission::SessionFact;
use caliber_core::clock::Deadline;
use caliber_core::gateway::Gateway;
use caliber_core::policy::ToolPolicy;
use caliber_core::reason::ReasonCode;
use caliber_core::server::{ServerLimits, Sharing};
use caliber_core::{ErrorKind, Settings};
use caliber_gateway::{GatewaySettings, LauncherSettings};

use crate::support::{
    EVERY_TRANSPORT, House, Over, Rig, caller, calls, definition, eventually, for_each, request, text,
};

const ECHO: &str = r#"{"value":"x"}"#;

async fn count(house: &House, who: &str, server: &caliber_core::id::ServerId) -> String {
    text(&house.call_as(who, server, "count", "{}").await.unwrap())
}

/// How often the server of a rig was started.
fn starts(rig: &Rig) -> usize {
    let pids = rig.records("pids");
    pids.iter().filter(|line| line.ends_with("server")).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_caller_has_its_own_state() {
    let house = House::new();
    for over in EVERY_TRANSPORT {
        let rig = Rig::new(over, &[]).await;
        let server = house.add(&format!("own-{over:?}"), &rig).await;
        let mut counts = Vec::new();
        for who in ["ada", "ada", "bob", "ada"] {
            counts.push(count(&house, who, &server).await);
        }
        assert_eq!(counts, ["1", "2", "1", "3"], "{over:?}");
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sharing_is_the_operators_choice() {
    let house = House::new();
    let rig = Rig::new(Over::Stdio, &[]).await;
    let mut definition = definition("shared", rig.endpoint());
    definition.sharing = Sharing::Shared;
    let server = house.add_definition(definition).await;
    let mut counts = Vec::new();
    for who in ["ada", "ada", "bob", "ada"] {
        counts.push(count(&house, who, &server).await);
    }
    assert_eq!(counts, ["1", "2", "3", "4"]);
    assert_eq!(house.gateway.health(&server).sessions, 1);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_modern_http_server_has_one_session_for_all() {
    let house = House::new();
    let rig = Rig::new(Over::Http, &["--era", "modern"]).await;
    let server = house.add("stateless", &rig).await;
    for who in ["ada", "bob", "eve"] {
        house.call_as(who, &server, "echo", ECHO).await.unwrap();
    }
    assert_eq!(house.gateway.health(&server).sessions, 1);
    assert_eq!(rig.records("discovers").len(), 2);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn first_calls_at_once_open_one_session() {
    let house = House::new();
    for over in EVERY_TRANSPORT {
        let rig = Rig::new(over, &[]).await;
        let server = house.add(&format!("once-{over:?}"), &rig).await;
        let outcomes = calls(&house, &server, "echo", ECHO, 8, |_| "ada".to_owned()).await;
        assert!(outcomes.iter().all(Result::is_ok), "{over:?}: {outcomes:?}");
        assert_eq!(rig.records("initializes").len(), 2, "{over:?}");
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_go_side_by_side() {
    let house = House::new();
    for_each(EVERY_TRANSPORT, async |over| {
        let rig = Rig::new(over, &[]).await;
        let server = house.add(&format!("parallel-{over:?}"), &rig).await;
        house.call(&server, "echo", ECHO).await.unwrap();
        let began = Instant::now();
        let outcomes = calls(&house, &server, "sleep", r#"{"seconds":1}"#, 20, |_| {
            "ada".to_owned()
        })
        .await;
        assert!(outcomes.iter().all(Result::is_ok), "{over:?}: {outcomes:?}");
        assert!(
            began.elapsed() < Duration::from_secs(3),
            "{over:?}: {:?}",
            began.elapsed()
        );
    })
    .await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_gets_no_more_calls_at_once_than_it_may() {
    let house = House::new();
    let rig = Rig::new(Over::Http, &[]).await;
    let mut definition = definition("narrow", rig.endpoint());
    definition.limits = ServerLimits {
        concurrency: Some(2),
        ..ServerLimits::default()
    };
    let server = house.add_definition(definition).await;
    let began = Instant::now();
    let outcomes = calls(&house, &server, "sleep", r#"{"seconds":0.3}"#, 6, |index| {
        format!("caller-{index}")
    })
    .await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    // Three rounds of two.
    assert!(began.elapsed() >= Duration::from_millis(900));
    house.close().await;
}

// On one thread: the reservation that only looks never stands in the queue while a call arrives.
#[tokio::test]
async fn what_is_revoked_while_a_call_waits_for_its_place_binds_it() {
    let settings = GatewaySettings {
        queue: 1,
        ..GatewaySettings::default()
    };
    let house = House::with(settings, Settings::default());
    let rig = Rig::new(Over::Http, &[]).await;
    let mut definition = definition("one-by-one", rig.endpoint());
    definition.limits.concurrency = Some(1);
    let server = house.add_definition(definition).await;
    // Nobody has called before: the gateway has heard of no limit.
    let mut calls: Vec<_> = [60, 61]
        .map(|seconds| {
            let caliber = house.caliber.clone();
            let request = request(&server, "sleep", &format!(r#"{{"seconds":{seconds}}}"#));
            tokio::spawn(async move { caliber.invoke(&caller("ada"), request).await })
        })
        .into();
    eventually("one runs and the other waits", async || {
        let at_once = Deadline::after(Duration::ZERO);
        let refused = house.gateway.reserve(&server, Some(1), at_once).await;
        let waits = refused.is_err_and(|error| error.message().contains("1 wait already"));
        waits && rig.records("executions").len() == 1
    })
    .await;
    let admin = crate::support::admin();
    let who = (&admin, caliber_core::principal::Surface::Library);
    let tool = "sleep".parse().unwrap();
    house.caliber.declassify(who, &server, &tool).await.unwrap();
    let first_runs = rig
        .records("requests")
        .iter()
        .any(|line| line.contains(r#""seconds":60"#));
    let running = calls.remove(usize::from(!first_runs));
    running.abort();
    let waiting = calls.remove(0).await.unwrap();
    let error = waiting.unwrap_err();
    assert_eq!(error.reason(), Some(ReasonCode::Unclassified), "{error}");
    assert_eq!(rig.records("executions").len(), 1);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_rested_too_long_is_closed_and_its_caller_is_told_once() {
    let settings = GatewaySettings {
        idle: Duration::from_millis(300),
        ..GatewaySettings::default()
    };
    let house = House::with(settings, Settings::default());
    let cancel = tokio_util::sync::CancellationToken::new();
    let running = tokio::spawn({
        let (caliber, cancel) = (house.caliber.clone(), cancel.clone());
        async move { caliber.run(cancel, Duration::from_secs(5)).await }
    });
    for_each(EVERY_TRANSPORT, async |over| {
        let rig = Rig::new(over, &[]).await;
        let server = house.add(&format!("resting-{over:?}"), &rig).await;
        assert_eq!(count(&house, "ada", &server).await, "1");
        eventually("the session is closed", async || {
            house.gateway.health(&server).sessions == 0
        })
        .await;
        let error = house.call(&server, "count", "{}").await.unwrap_err();
        assert_eq!(
            error.reason(),
            Some(ReasonCode::SessionRestarted),
            "{over:?}: {error}"
        );
        assert_eq!(rig.records("executions").len(), 1, "{over:?}");
        assert_eq!(count(&house, "ada", &server).await, "1", "{over:?}");
        // Whoever had no state is told nothing.
        assert_eq!(count(&house, "bob", &server).await, "1", "{over:?}");
    })
    .await;
    cancel.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_bounded_and_the_one_that_rested_longest_makes_room() {
    let settings = GatewaySettings {
        sessions_per_server: 2,
        ..GatewaySettings::default()
    };
    let house = House::with(settings, Settings::default());
    let rig = Rig::new(Over::Stdio, &[]).await;
    let server = house.add("crowded", &rig).await;
    for who in ["a", "b", "c", "d"] {
        assert_eq!(count(&house, who, &server).await, "1");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(house.gateway.health(&server).sessions <= 2);
    assert_eq!(count(&house, "d", &server).await, "2");
    let error = house.call_as("a", &server, "count", "{}").await.unwrap_err();
    assert_eq!(error.reason(), Some(ReasonCode::SessionRestarted), "{error}");
    // While all are at work, one more is refused rather than taking another's place.
    let busy = {
        let caliber = house.caliber.clone();
        let server = server.clone();
        tokio::spawn(async move {
            let mut calls = Vec::new();
            for who in ["c", "d"] {
                let caliber = caliber.clone();
                let request = request(&server, "sleep", r#"{"seconds":2}"#);
                calls.push(tokio::spawn(async move {
                    caliber.invoke(&caller(who), request).await
                }));
            }
            for call in calls {
                call.await.unwrap().unwrap();
            }
        })
    };
    eventually("both are at work", async || {
        house.gateway.health(&server).calls == 2
    })
    .await;
    let error = house.call_as("e", &server, "count", "{}").await.unwrap_err();
    assert_eq!(error.reason(), Some(ReasonCode::ServerBusy), "{error}");
    busy.await.unwrap();
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resting_process_makes_room_for_another_servers() {
    let launcher = LauncherSettings {
        children: 2,
        ..LauncherSettings::default()
    };
    let house = House::with_launcher(GatewaySettings::default(), Settings::default(), launcher);
    let rigs = [
        Rig::new(Over::Stdio, &[]).await,
        Rig::new(Over::Stdio, &[]).await,
        Rig::new(Over::Stdio, &[]).await,
    ];
    let mut servers = Vec::new();
    for (index, rig) in rigs.iter().enumerate() {
        let server = house
            .register(definition(&format!("child-{index}"), rig.endpoint()))
            .await;
        // The process of the discovery before ends in the background.
        eventually("it is discovered", async || house.discover(&server).await.is_ok()).await;
        house.allow_all(&server, &ToolPolicy::allow_read()).await;
        assert_eq!(count(&house, "ada", &server).await, "1");
        servers.push(server);
    }
    let open: u32 = servers
        .iter()
        .map(|server| house.gateway.health(server).sessions)
        .sum();
    assert!(open <= 2, "{open} processes");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_sessions_together_are_bounded() {
    let settings = GatewaySettings {
        sessions: 2,
        ..GatewaySettings::default()
    };
    let house = House::with(settings, Settings::default());
    let mut rigs = Vec::new();
    let mut servers = Vec::new();
    for index in 0..4 {
        let rig = Rig::new(Over::Http, &[]).await;
        servers.push(house.add(&format!("one-of-{index}"), &rig).await);
        rigs.push(rig);
    }
    for server in &servers {
        assert_eq!(count(&house, "ada", server).await, "1");
        let open: u32 = servers
            .iter()
            .map(|server| house.gateway.health(server).sessions)
            .sum();
        assert!(open <= 2, "{open} sessions");
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_dies_while_it_rests_costs_one_answer() {
    let house = House::new();
    let rig = Rig::new(Over::Stdio, &[]).await;
    let server = house.add("mortal", &rig).await;
    assert_eq!(count(&house, "ada", &server).await, "1");
    rig.order("do=exit");
    eventually("the session is gone", async || {
        house.session(&server, "count").await == SessionFact::NotOpen
    })
    .await;
    rig.order("mode=healthy");
    let error = house.call(&server, "count", "{}").await.unwrap_err();
    assert_eq!(error.reason(), Some(ReasonCode::SessionRestarted), "{error}");
    assert_eq!(count(&house, "ada", &server).await, "1");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_loop_is_slowed_down_and_hurts_nobody_else() {
    let settings = GatewaySettings {
        breaker_failures: 3,
        breaker_pause: Duration::from_millis(500),
        breaker_longest: Duration::from_secs(2),
        ..GatewaySettings::default()
    };
    let house = House::with(settings, Settings::default());
    let healthy = Rig::new(Over::Stdio, &[]).await;
    let healthy_server = house.add("healthy", &healthy).await;
    let rig = Rig::new(Over::Stdio, &["--mode", "exit_on_call"]).await;
    let server = house.add("crashing", &rig).await;
    let began = Instant::now();
    let mut refused = 0;
    while began.elapsed() < Duration::from_secs(3) {
        let error = house.call(&server, "echo", ECHO).await.unwrap_err();
        match error.reason() {
            Some(ReasonCode::BreakerOpen) => {
                refused += 1;
                assert_eq!(error.kind(), ErrorKind::Unavailable);
                assert!(house.gateway.health(&server).breaker_open);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            _ => assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}"),
        }
        house.call(&healthy_server, "echo", ECHO).await.unwrap();
    }
    assert!(refused > 0);
    let starts = starts(&rig);
    assert!(starts <= 10, "{starts} starts");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_breaker_closes_when_the_server_is_well_again() {
    let settings = GatewaySettings {
        breaker_failures: 2,
        breaker_pause: Duration::from_secs(10),
        ..GatewaySettings::default()
    };
    let house = House::with(settings, Settings::default());
    let rig = Rig::new(Over::Stdio, &[]).await;
    let program = rig.write("server.sh", "exit 7\n");
    let mut endpoint = rig.endpoint();
    // A wrapper that is repaired later; its arguments, and with them the fingerprint, stay.
    if let caliber_core::server::Endpoint::Stdio(stdio) = &mut endpoint {
        stdio.command = "sh".to_owned();
        stdio.args.insert(0, program.to_str().unwrap().to_owned());
    }
    rig.write("server.sh", "exec python3 \"$@\"\n");
    let server = house.add_definition(definition("repaired", endpoint)).await;
    rig.write("server.sh", "echo the disk is full >&2; exit 7\n");
    for _ in 0..2 {
        let error = house.call(&server, "echo", ECHO).await.unwrap_err();
        assert!(error.message().contains("the disk is full"), "{error}");
    }
    let error = house.call(&server, "echo", ECHO).await.unwrap_err();
    assert_eq!(error.reason(), Some(ReasonCode::BreakerOpen), "{error}");
    rig.write("server.sh", "exec python3 \"$@\"\n");
    // The operator looks, and that is enough.
    house.discover(&server).await.unwrap();
    house.call(&server, "echo", ECHO).await.unwrap();
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_deaf_to_cancellation_is_replaced() {
    let settings = GatewaySettings {
        late_answers: 3,
        ..GatewaySettings::default()
    };
    let house = House::with(settings, Settings::default());
    let rig = Rig::new(
        Over::Stdio,
        &[
            "--mode",
            "ignore_cancel",
            "--seconds",
            "0.4",
            "--variant",
            "answer",
        ],
    )
    .await;
    let server = house.add("deaf", &rig).await;
    house.call(&server, "echo", ECHO).await.unwrap();
    for _ in 0..3 {
        let time = Duration::from_millis(100);
        let error = house.call_within(&server, "echo", ECHO, time).await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Timeout);
    }
    // Another call in flight is not harmed by the replacement.
    let long = calls(&house, &server, "echo", ECHO, 4, |_| "ada".to_owned()).await;
    assert!(long.iter().all(Result::is_ok), "{long:?}");
    eventually("a new process takes over", async || {
        let outcome = house.call(&server, "echo", ECHO).await;
        outcome.is_ok() && starts(&rig) >= 3
    })
    .await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_is_replaced_and_a_slow_one_is_not() {
    let settings = GatewaySettings {
        unanswered: 2,
        ..GatewaySettings::default()
    };
    let house = House::with(settings, Settings::default());
    let rig = Rig::new(Over::Stdio, &["--mode", "silent_call", "--when", "call,ping"]).await;
    let server = house.add("hanging", &rig).await;
    let slow = Rig::new(Over::Stdio, &[]).await;
    let slow_server = house.add("slow", &slow).await;
    for _ in 0..3 {
        let time = Duration::from_millis(200);
        house.call_within(&server, "echo", ECHO, time).await.unwrap_err();
        house
            .call_within(&slow_server, "sleep", r#"{"seconds":5}"#, time)
            .await
            .unwrap_err();
    }
    eventually("the hanging one is replaced", async || {
        drop(
            house
                .call_within(&server, "echo", ECHO, Duration::from_millis(200))
                .await,
        );
        starts(&rig) >= 3
    })
    .await;
    house.call(&slow_server, "echo", ECHO).await.unwrap();
    assert_eq!(starts(&slow), 2);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_calls_reach_the_upstream_with_its_own_id_and_free_everything() {
    let house = Arc::new(House::new());
    for (over, era) in [
        (Over::Stdio, "legacy"),
        (Over::Http, "legacy"),
        (Over::Sse, "legacy"),
        (Over::Stdio, "modern"),
        (Over::Http, "modern"),
    ] {
        let rig = Rig::new(over, &["--era", era]).await;
        let name = format!("cancel-{over:?}-{era}");
        let server = house.add(&name, &rig).await;
        house.call(&server, "echo", ECHO).await.unwrap();
        let mut running = Vec::new();
        for _ in 0..10 {
            let caliber = house.caliber.clone();
            let request = request(&server, "sleep", r#"{"seconds":60}"#);
            running.push(tokio::spawn(async move {
                caliber.invoke(&caller("ada"), request).await
            }));
        }
        rig.wait_for_records("executions", 11).await;
        for call in &running {
            call.abort();
        }
        let way = if (over, era) == (Over::Http, "modern") {
            "stream_closed"
        } else {
            "notification"
        };
        let cancels = || {
            let cancels = rig.records("cancels").into_iter();
            cancels.filter(|line| line.contains(way)).collect::<Vec<_>>()
        };
        eventually("every call is cancelled", async || cancels().len() >= 10).await;
        let cancels = cancels();
        assert!(
            cancels.iter().all(|line| line.ends_with("live")),
            "{name}: {cancels:?}"
        );
        let mut ids: Vec<_> = cancels
            .iter()
            .map(|line| line.split('\t').next().unwrap().to_owned())
            .collect();
        ids.sort();
        let executed = rig.records("executions");
        let mut expected: Vec<_> = executed[1..]
            .iter()
            .map(|line| line.split('\t').nth(1).unwrap().to_owned())
            .collect();
        expected.sort();
        assert_eq!(ids, expected, "{name}");
        eventually("no call is left", async || {
            house.gateway.health(&server).calls == 0
        })
        .await;
        house.call(&server, "echo", ECHO).await.unwrap();
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stubborn_children_delay_no_answer_and_do_not_stay() {
    let house = House::new();
    let rig = Rig::new(Over::Stdio, &["--mode", "stubborn"]).await;
    let began = Instant::now();
    let server = house.add("stubborn", &rig).await;
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    house.call(&server, "echo", ECHO).await.unwrap();
    house.close().await;
    eventually("no process is left", async || {
        rig.records("pids").iter().all(|line| {
            let pid = line.split('\t').next().unwrap();
            !std::path::Path::new("/proc").join(pid).exists()
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_repeated_only_where_the_operator_said_so() {
    let house = House::new();
    for replay_safe in [false, true] {
        let rig = Rig::new(
            Over::Http,
            &["--mode", "execute_then", "--variant", "drop", "--times", "1"],
        )
        .await;
        let server = house.add(&format!("replay-{replay_safe}"), &rig).await;
        let policy = ToolPolicy {
            replay_safe,
            ..ToolPolicy::allow_read()
        };
        house.allow_all(&server, &policy).await;
        let outcome = house.call(&server, "echo", ECHO).await;
        if replay_safe {
            outcome.unwrap();
            assert_eq!(rig.records("executions").len(), 2);
        } else {
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::OutcomeUnknown);
            assert_eq!(rig.records("executions").len(), 1);
        }
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_opening_that_takes_long_serves_the_next_call() {
    let house = House::new();
    let rig = Rig::new(Over::Http, &[]).await;
    let server = house.add("late-starter", &rig).await;
    rig.control("mode=slow_start&seconds=1").await;
    let time = Duration::from_millis(300);
    let error = house.call_within(&server, "echo", ECHO, time).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Timeout);
    house.call(&server, "echo", ECHO).await.unwrap();
    assert_eq!(rig.records("initializes").len(), 2);
    house.close().await;
}
