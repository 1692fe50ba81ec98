//! The report of a boundary.

use caliber_core::address::AddressRules;
use caliber_core::process::ContainmentMeasure;
use caliber_core::readiness::BoundaryReport;
use caliber_policy::PolicySettings;
use caliber_policy::readiness::readiness;
use caliber_policy::settings::{Isolation, IsolationProfile};

use crate::facts::{remote, stdio};

fn measures() -> Vec<ContainmentMeasure> {
    vec![
        ContainmentMeasure {
            measure: "process_group".into(),
            enforced: true,
            note: "a process that leaves its group is not covered".into(),
        },
        ContainmentMeasure {
            measure: "cgroup".into(),
            enforced: false,
            note: "not writable here".into(),
        },
    ]
}

#[test]
fn a_child_process_is_told_as_it_is() {
    let settings = PolicySettings {
        launch: vec!["/usr/bin/mcp-git".parse().unwrap()],
        ..PolicySettings::default()
    };
    let report = BoundaryReport::new(
        &readiness(&settings, &stdio("/usr/bin/mcp-git", &[])),
        &measures(),
    );
    assert!(!report.production_isolated);
    assert_eq!(
        report.enforced,
        [
            "no_shell",
            "sanitized_environment",
            "command_allowlist",
            "private_working_directory",
            "process_group"
        ]
    );
    assert!(report.attested.is_empty());
    assert_eq!(
        report.absent,
        [
            "verified_namespace_profile",
            "network_namespace",
            "read_only_host_root",
            "cgroup: not writable here"
        ]
    );
}

#[test]
fn what_cannot_be_seen_is_attested_and_not_enforced() {
    let wrapped = PolicySettings {
        isolation: Isolation {
            prefix: vec!["/usr/bin/firejail".into()],
            profile: IsolationProfile::None,
        },
        ..PolicySettings::default()
    };
    let report = BoundaryReport::new(&readiness(&wrapped, &stdio("/usr/bin/mcp-git", &[])), &[]);
    assert_eq!(report.attested.len(), 1);
    assert!(!report.enforced.contains(&"network_namespace".to_owned()));

    let beside = PolicySettings {
        addresses: AddressRules {
            sidecars: vec!["http://mcp-db:8101 172.18.0.0/16".parse().unwrap()],
            ..AddressRules::default()
        },
        ..PolicySettings::default()
    };
    let report = BoundaryReport::new(
        &readiness(&beside, &remote("http://mcp-db:8101/", &["172.18.0.2"])),
        &measures(),
    );
    assert!(report.production_isolated);
    assert_eq!(report.enforced, ["remote_host_allowlist", "pinned_address"]);
    assert_eq!(
        report.absent,
        ["tls"],
        "what a launcher does is nothing to a remote server"
    );
    assert!(report.attested[0].contains("mcp-db"), "{report:?}");
}

#[test]
fn the_words_are_those_of_the_wire() {
    let settings = PolicySettings::default();
    let facts = [
        readiness(&settings, &stdio("x", &[])),
        readiness(&settings, &remote("https://localhost/", &["127.0.0.1"])),
    ];
    for verdict in facts {
        let wire = serde_json::to_value(&verdict.controls).unwrap();
        let report = BoundaryReport::new(&verdict, &[]);
        assert_eq!(serde_json::to_value(&report.enforced).unwrap(), wire);
        assert_eq!(
            serde_json::to_value(verdict.boundary).unwrap(),
            verdict.boundary.as_str()
        );
    }
}
