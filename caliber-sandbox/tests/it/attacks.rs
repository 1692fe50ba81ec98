//! The list of attacks, each as a plain child, where it wins, and in the sandbox, where it does not.
//!
//! Everything that is hostile runs inside a throw-away world, see [`outer`].

pub(crate) mod catalogue;
mod control;
pub(crate) mod host;
pub(crate) mod outer;

use self::host::Host;
use self::outer::{Identity, inside};

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

/// Fails with every problem at once.
fn report(problems: impl Iterator<Item = String>) {
    let problems: Vec<String> = problems.collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
