//! Servers that are dialled.

use std::sync::Arc;

use caliber_core::address::AddressRules;
use caliber_core::readiness::{Boundary, Control, Readiness, ReadinessFacts};
use caliber_core::reason::ReasonCode;
use caliber_core::secret::ConfigValue;
use caliber_core::server::Auth;
use caliber_policy::PolicySettings;
use caliber_policy::readiness::readiness;
use caliber_policy::settings::{parse_blocked_categories, parse_remote_hosts};

use crate::coverage::Example;
use crate::facts::{blockers, is_presentable, remote, stdio, warnings};

fn settings(hosts: &str) -> PolicySettings {
    PolicySettings {
        remote_hosts: parse_remote_hosts(hosts).unwrap(),
        ..PolicySettings::default()
    }
}

fn sidecar() -> PolicySettings {
    PolicySettings {
        addresses: AddressRules {
            sidecars: vec!["http://mcp-db:8101 172.18.0.0/16".parse().unwrap()],
            ..AddressRules::default()
        },
        ..PolicySettings::default()
    }
}

fn judge(url: &str, addresses: &[&str]) -> Readiness {
    readiness(
        &settings("mcp.example.com,localhost,127.0.0.1,::1"),
        &remote(url, addresses),
    )
}

pub(crate) fn examples() -> Vec<Example> {
    const PUBLIC: &[&str] = &["93.184.215.14"];
    let good = || judge("https://mcp.example.com/mcp", PUBLIC);
    let blocker = |code, with| Example {
        code,
        blocks: true,
        with,
        without: good(),
    };
    let warning = |code, with| Example {
        code,
        blocks: false,
        with,
        without: good(),
    };
    let plain = PolicySettings {
        allow_plain_http: true,
        ..settings("mcp.example.com")
    };
    let mut secret = remote("https://mcp.example.com/mcp", PUBLIC);
    Arc::make_mut(&mut secret.definition).auth = Auth::Token {
        token: ConfigValue::from_input("${DATABASE_URL}"),
    };
    vec![
        blocker(ReasonCode::EndpointMissing, judge("", PUBLIC)),
        blocker(ReasonCode::UrlInvalid, judge("ftp://mcp.example.com", PUBLIC)),
        blocker(
            ReasonCode::CredentialsInUrl,
            judge("https://ada:pw@mcp.example.com", PUBLIC),
        ),
        blocker(
            ReasonCode::HostNotAllowed,
            judge("https://evil.example.com", PUBLIC),
        ),
        blocker(
            ReasonCode::AddressBlocked,
            judge("https://mcp.example.com/mcp", &["93.184.215.14", "10.0.0.1"]),
        ),
        blocker(ReasonCode::PlainHttp, judge("http://mcp.example.com/mcp", PUBLIC)),
        blocker(
            ReasonCode::SecretNotAllowed,
            readiness(&settings("mcp.example.com"), &secret),
        ),
        blocker(
            ReasonCode::PolicyError,
            readiness(
                &settings("mcp.example.com"),
                &ReadinessFacts {
                    endpoint: stdio("x", &[]).endpoint,
                    ..remote("https://mcp.example.com/mcp", PUBLIC)
                },
            ),
        ),
        warning(
            ReasonCode::NotIsolated,
            judge("http://localhost:8080/mcp", &["127.0.0.1"]),
        ),
        warning(
            ReasonCode::OperatorAttested,
            readiness(&sidecar(), &remote("http://mcp-db:8101/mcp", &["172.18.0.2"])),
        ),
        warning(
            ReasonCode::HostUnresolved,
            judge("https://mcp.example.com/mcp", &[]),
        ),
        warning(
            ReasonCode::PlainHttpAllowed,
            readiness(&plain, &remote("http://mcp.example.com/mcp", PUBLIC)),
        ),
    ]
}

#[test]
fn each_reason_stands_where_it_belongs() {
    examples().iter().for_each(Example::check);
}

#[test]
fn a_url_is_written_as_it_is_dialled() {
    const INVALID: &[ReasonCode] = &[ReasonCode::UrlInvalid];
    const CREDENTIALS: &[ReasonCode] = &[ReasonCode::CredentialsInUrl];
    const HOST: &[ReasonCode] = &[ReasonCode::HostNotAllowed];
    const NOTHING: &[ReasonCode] = &[];
    for (url, expected) in [
        ("http://127.0.0.1:9/mcp", NOTHING),
        ("HTTP://LOCALHOST:9/mcp", NOTHING),
        ("http://[::1]:9/mcp", NOTHING),
        ("http://127.0.0.1?x=1", NOTHING),
        // Other spellings of loopback, and of a host that is allowed.
        ("http://2130706433/", INVALID),
        ("http://0x7f.1/", INVALID),
        ("http://0x7f000001/", INVALID),
        ("http://0177.0.0.1/", INVALID),
        ("http://127.1/", INVALID),
        ("http://127.0.0.1./", INVALID),
        ("http://%31%32%37.0.0.1/", INVALID),
        ("http://１２７.0.0.1/", INVALID),
        ("http://[0:0:0:0:0:0:0:1]/", INVALID),
        ("http://[::0001]/", INVALID),
        ("http://[::ffff:127.0.0.1]/", INVALID),
        ("http://[::ffff:7f00:1]/", HOST),
        ("http://0.0.0.0/", HOST),
        ("http://0/", INVALID),
        ("http://127.0.0.2/", HOST),
        ("http://localhost./", HOST),
        ("http://localhost.evil.com/", HOST),
        ("http://loc%61lhost/", INVALID),
        ("http:localhost/", INVALID),
        ("http:/localhost/", INVALID),
        ("http:///localhost/", INVALID),
        ("http:\\\\localhost/", INVALID),
        ("http://localhost\\@evil.com/", INVALID),
        ("http://localhost/a\\b", INVALID),
        ("http://lo\tcalhost/", INVALID),
        ("http://localhost/a b", INVALID),
        (" http://localhost/", INVALID),
        ("http://localhost/\n", INVALID),
        ("http://localhost/#part", INVALID),
        ("http://localhost:99999/", INVALID),
        ("localhost:9", INVALID),
        ("file:///etc/passwd", INVALID),
        ("unix:/run/docker.sock", INVALID),
        ("http://", INVALID),
        // Credentials, and what looks like them.
        ("http://ada@localhost/", CREDENTIALS),
        ("http://:pw@localhost/", CREDENTIALS),
        ("http://localhost@evil.com/", CREDENTIALS),
        ("http://evil.com#@localhost/", INVALID),
        ("http://@localhost/", INVALID),
        // Names that look like others.
        ("http://ⓛocalhost/", INVALID),
        ("http://lосalhost/", INVALID),
        ("http://xn--80ak6aa92e.com/", HOST),
    ] {
        let address = if url.contains("[") { "::1" } else { "127.0.0.1" };
        let verdict = judge(url, &[address]);
        // Plain HTTP to hosts that are not allowed is judged elsewhere.
        let stands: Vec<_> = blockers(&verdict)
            .into_iter()
            .filter(|code| *code != ReasonCode::PlainHttp)
            .collect();
        assert_eq!(stands, expected, "{url:?}: {verdict:?}");
    }
}

#[test]
fn no_refusal_repeats_what_a_url_hides() {
    for url in [
        "https://canary:canary@mcp.example.com/",
        "https://mcp.example.com/?token=canary#x",
        "https://other.example.com/canary?token=canary",
        "ftp://mcp.example.com/canary",
        "http:canary",
    ] {
        let verdict = judge(url, &["10.77.0.1"]);
        assert!(!verdict.is_ready(), "{url}");
        let shown = format!("{verdict:?}");
        assert!(!shown.contains("token") && !shown.contains("10.77"), "{shown}");
        let canary = shown.contains("canary");
        assert!(!canary || url == "http:canary", "only a host is shown: {shown}");
    }
}

#[test]
fn an_international_name_is_written_in_ascii() {
    let settings = settings("bücher.example");
    let public = &["93.184.215.14"];
    let written = |url| readiness(&settings, &remote(url, public));
    assert!(written("https://xn--bcher-kva.example/").is_ready());
    let verdict = written("https://bücher.example/");
    assert_eq!(blockers(&verdict), [ReasonCode::UrlInvalid]);
    assert!(
        verdict.blockers[0].text.contains("https://xn--bcher-kva.example"),
        "{verdict:?}"
    );
}

#[test]
fn a_port_can_be_pinned() {
    let settings = settings("mcp.example.com:8443");
    let public = &["93.184.215.14"];
    assert!(readiness(&settings, &remote("https://mcp.example.com:8443/", public)).is_ready());
    let verdict = readiness(&settings, &remote("https://mcp.example.com/", public));
    assert_eq!(blockers(&verdict), [ReasonCode::HostNotAllowed]);
}

#[test]
fn every_address_of_a_host_has_to_pass() {
    for (address, blocked) in [
        ("93.184.215.14", false),
        ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", false),
        ("127.0.0.1", true),
        ("::1", true),
        ("10.0.0.1", true),
        ("172.16.0.1", true),
        ("192.168.0.1", true),
        ("169.254.1.1", true),
        ("169.254.169.254", true),
        ("100.64.0.1", true),
        ("0.0.0.0", true),
        ("::", true),
        ("224.0.0.1", true),
        ("240.0.0.1", true),
        ("fd00::1", true),
        ("fe80::1", true),
        ("::ffff:127.0.0.1", true),
        ("::ffff:10.0.0.1", true),
        ("::127.0.0.1", true),
        ("64:ff9b::7f00:1", true),
        ("2002:7f00:1::", true),
        ("2001:0:808:808::80ff:fffe", true),
        ("64:ff9b::808:808", false),
    ] {
        for addresses in [
            &[address][..],
            &[address, "93.184.215.14"],
            &["93.184.215.14", address],
        ] {
            let verdict = judge("https://mcp.example.com/mcp", addresses);
            let expected = if blocked {
                vec![ReasonCode::AddressBlocked]
            } else {
                vec![]
            };
            assert_eq!(blockers(&verdict), expected, "{addresses:?}");
            let boundary = if blocked {
                Boundary::RemoteTransport
            } else {
                Boundary::RemoteHttps
            };
            assert_eq!(verdict.boundary, boundary, "{addresses:?}");
            assert_eq!(verdict.controls.contains(&Control::PinnedAddress), !blocked);
        }
    }
}

#[test]
fn an_address_that_is_written_is_judged_without_being_asked_for() {
    let open = settings("10.0.0.1,93.184.215.14,169.254.169.254");
    let none = &[][..];
    let verdict = readiness(&open, &remote("https://10.0.0.1/mcp", none));
    assert_eq!(blockers(&verdict), [ReasonCode::AddressBlocked]);
    let verdict = readiness(&open, &remote("https://93.184.215.14/mcp", none));
    assert!(
        verdict.is_ready() && verdict.boundary == Boundary::RemoteHttps,
        "{verdict:?}"
    );
    let unblocked = PolicySettings {
        addresses: AddressRules {
            blocked: parse_blocked_categories("").unwrap(),
            ..AddressRules::default()
        },
        ..open
    };
    let verdict = readiness(&unblocked, &remote("https://10.0.0.1/mcp", none));
    assert!(verdict.is_ready(), "{verdict:?}");
    assert_eq!(
        verdict.boundary,
        Boundary::RemoteTransport,
        "inside is no boundary"
    );
    let verdict = readiness(&unblocked, &remote("https://169.254.169.254/mcp", none));
    assert_eq!(blockers(&verdict), [ReasonCode::AddressBlocked]);
}

#[test]
fn loopback_is_for_hosts_that_say_so() {
    assert!(judge("http://localhost:9/mcp", &["127.0.0.1", "::1"]).is_ready());
    assert!(judge("http://127.0.0.1:9/mcp", &["127.0.0.1"]).is_ready());
    assert!(judge("http://[::1]:9/mcp", &["::1"]).is_ready());
    assert_eq!(
        blockers(&judge("http://localhost:9/mcp", &["10.0.0.1"])),
        [ReasonCode::AddressBlocked]
    );
    assert_eq!(
        blockers(&judge("http://localhost:9/mcp", &["93.184.215.14"])),
        [ReasonCode::AddressBlocked]
    );
    let nowhere = settings("mcp.example.com");
    assert_eq!(
        blockers(&readiness(
            &nowhere,
            &remote("http://localhost:9/mcp", &["127.0.0.1"])
        )),
        [ReasonCode::HostNotAllowed]
    );
    let https = judge("https://localhost:9/mcp", &["127.0.0.1"]);
    assert_eq!(
        https.boundary,
        Boundary::RemoteTransport,
        "TLS to ourselves is no boundary"
    );
    assert_eq!(warnings(&https), [ReasonCode::NotIsolated]);
}

#[test]
fn a_host_that_is_not_allowed_is_not_mapped() {
    let inside = judge("https://intranet.example.com/", &["10.0.0.1"]);
    let outside = judge("https://intranet.example.com/", &["93.184.215.14"]);
    let nowhere = judge("https://intranet.example.com/", &[]);
    assert_eq!(inside, outside);
    assert_eq!(inside, nowhere);
    assert_eq!(blockers(&inside), [ReasonCode::HostNotAllowed]);
}

#[test]
fn plain_http_is_the_operators_choice() {
    let public = &["93.184.215.14"];
    let url = "http://mcp.example.com/mcp";
    assert_eq!(blockers(&judge(url, public)), [ReasonCode::PlainHttp]);
    let plain = PolicySettings {
        allow_plain_http: true,
        ..settings("mcp.example.com")
    };
    let verdict = readiness(&plain, &remote(url, public));
    assert!(verdict.is_ready());
    assert_eq!(verdict.boundary, Boundary::RemoteTransport);
    assert_eq!(
        warnings(&verdict),
        [ReasonCode::PlainHttpAllowed, ReasonCode::NotIsolated]
    );
    assert!(!verdict.controls.contains(&Control::Tls));
}

#[test]
fn a_sidecar_is_attested_at_its_addresses() {
    let settings = sidecar();
    let verdict = readiness(&settings, &remote("http://mcp-db:8101/mcp", &["172.18.0.2"]));
    assert!(verdict.is_ready(), "{verdict:?}");
    assert_eq!(verdict.boundary, Boundary::ManagedSidecar);
    assert!(verdict.boundary.is_production_isolated());
    assert_eq!(warnings(&verdict), [ReasonCode::OperatorAttested]);
    for (url, addresses, expected) in [
        (
            "http://mcp-db:8101/mcp",
            &["172.19.0.2"][..],
            vec![ReasonCode::AddressBlocked],
        ),
        (
            "http://mcp-db:8101/mcp",
            &["172.18.0.2", "93.184.215.14"],
            vec![ReasonCode::AddressBlocked],
        ),
        (
            "http://mcp-db:8102/mcp",
            &["172.18.0.2"],
            vec![ReasonCode::HostNotAllowed, ReasonCode::PlainHttp],
        ),
        (
            "https://mcp-db:8101/mcp",
            &["172.18.0.2"],
            vec![ReasonCode::HostNotAllowed],
        ),
    ] {
        let verdict = readiness(&settings, &remote(url, addresses));
        assert_eq!(blockers(&verdict), expected, "{url} {addresses:?}");
        assert!(!verdict.boundary.is_production_isolated(), "{url} {addresses:?}");
    }
}

#[test]
fn a_name_without_addresses_is_no_verdict() {
    let verdict = judge("https://mcp.example.com/mcp", &[]);
    assert!(verdict.is_ready());
    assert_eq!(warnings(&verdict), [ReasonCode::HostUnresolved]);
    assert_eq!(
        verdict.boundary,
        Boundary::RemoteHttps,
        "nothing but a public address can be dialled"
    );
    let inside = PolicySettings {
        addresses: AddressRules {
            blocked: parse_blocked_categories("loopback,link_local,other_reserved").unwrap(),
            ..AddressRules::default()
        },
        ..settings("mcp.example.com")
    };
    let verdict = readiness(&inside, &remote("https://mcp.example.com/mcp", &[]));
    assert_eq!(
        verdict.boundary,
        Boundary::RemoteTransport,
        "a private address could be dialled"
    );
}

#[test]
fn texts_are_one_line() {
    for host in ["a", "xn--bcher-kva.example", &"a".repeat(200)] {
        let verdict = judge(&format!("https://{host}:1/"), &[]);
        for reason in verdict.blockers.iter().chain(&verdict.warnings) {
            assert!(is_presentable(&reason.text), "{reason:?}");
        }
    }
}
