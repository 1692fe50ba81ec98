//! The list of attacks, each as a plain child, where it wins, and in the sandbox, where it does not.
//!
//! Everything that is hostile runs inside a throw-away world, see [`outer`].

pub(crate) mod catalogue;
mod cell;
mod control;
pub(crate) mod host;
pub(crate) mod outer;
mod scenarios;
mod zygote_control;

use std::collections::BTreeSet;

use self::cell::{Cell, Way};
use self::host::Host;
use self::outer::{Identity, inside};

#[test]
fn every_row_of_the_list_has_an_entry() {
    let rows: BTreeSet<u8> = catalogue::attacks()
        .iter()
        .map(|attack| attack.row)
        .chain(scenarios::scenarios().iter().map(|scenario| scenario.row))
        .collect();
    let missing: Vec<u8> = (1..=catalogue::ROWS).filter(|row| !rows.contains(row)).collect();
    assert!(missing.is_empty(), "rows without an entry: {missing:?}");
    assert_eq!(rows.len(), usize::from(catalogue::ROWS));
}

#[test]
fn every_attack_wins_as_a_plain_child() {
    inside(
        "attacks::every_attack_wins_as_a_plain_child",
        Identity::Nobody,
        || {
            let mut host = Host::new("controls");
            report(catalogue::attacks().iter().filter_map(|attack| {
                let problem = control::check(attack, &mut host).err()?;
                Some(format!("{}: {problem}", attack.name()))
            }));
        },
    );
}

/// The whole list, in one cell of the matrix.
fn all(identity: Identity, way: Way) {
    let mut cell = Cell::new(identity, way);
    let mut problems = Vec::new();
    for attack in catalogue::attacks() {
        let found = cell.attack(&attack);
        problems.extend(
            found
                .into_iter()
                .map(|problem| format!("{}: {problem}", attack.name())),
        );
    }
    for scenario in scenarios::scenarios() {
        let name = format!("row {} {}", scenario.row, scenario.name);
        // Each says what is wrong by a panic; the others are run all the same.
        let run = std::panic::AssertUnwindSafe(|| (scenario.run)(&mut cell));
        if std::panic::catch_unwind(run).is_err() {
            problems.push(format!("{name}: see above"));
        }
        problems.extend(
            cell.after(&[])
                .into_iter()
                .map(|problem| format!("{name}: {problem}")),
        );
    }
    problems.extend(cell.close());
    report(problems.into_iter());
}

/// A module that speaks for the process with the imports.
fn control_of_zygotes(identity: Identity, way: Way) {
    let mut cell = Cell::new(identity, way);
    zygote_control::forged_messages(&mut cell);
    zygote_control::death_signal(&mut cell);
    report(cell.after(&[]).into_iter());
    report(cell.close().into_iter());
}

/// Not a test of its own: a supervisor that is killed.
#[test]
fn part_supervisor() {
    match std::env::var(scenarios::PART).as_deref() {
        Ok("Cold") => scenarios::supervise(Way::Cold),
        Ok("Zygote") => scenarios::supervise(Way::Zygote),
        Ok("Spare") => scenarios::supervise(Way::Spare),
        Ok("WithoutLandlock") => scenarios::supervise(Way::WithoutLandlock),
        Ok("WithoutNamespaces") => scenarios::supervise(Way::WithoutNamespaces),
        _ => {}
    }
}

macro_rules! cells {
    ($($name:ident: $identity:ident, $way:ident;)*) => {
        $(
            #[test]
            fn $name() {
                inside(concat!("attacks::", stringify!($name)), Identity::$identity, || {
                    all(Identity::$identity, Way::$way);
                });
            }
        )*
    };
}

cells! {
    cold_as_root: Root, Cold;
    cold_as_nobody: Nobody, Cold;
    zygote_as_root: Root, Zygote;
    zygote_as_nobody: Nobody, Zygote;
    spare_as_root: Root, Spare;
    spare_as_nobody: Nobody, Spare;
    without_landlock_as_root: Root, WithoutLandlock;
    without_landlock_as_nobody: Nobody, WithoutLandlock;
    without_namespaces_as_root: RootInDocker, WithoutNamespaces;
    without_namespaces_as_nobody: NobodyInDocker, WithoutNamespaces;
}

macro_rules! controls_of_zygotes {
    ($($name:ident: $identity:ident, $way:ident;)*) => {
        $(
            #[test]
            fn $name() {
                inside(concat!("attacks::", stringify!($name)), Identity::$identity, || {
                    control_of_zygotes(Identity::$identity, Way::$way);
                });
            }
        )*
    };
}

controls_of_zygotes! {
    control_of_zygotes_as_root: Root, Zygote;
    control_of_zygotes_as_nobody: Nobody, Spare;
}

/// Fails with every problem at once.
fn report(problems: impl Iterator<Item = String>) {
    let problems: Vec<String> = problems.collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
