//! How far a version has come.

use serde::{Deserialize, Serialize};

/// The rungs of the ladder. Each holds only with all below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LifecycleStage {
    /// It is registered.
    Draft,
    /// It has saved cases.
    HasFixtures,
    /// Its current content passed a run of its cases that was executed here.
    Tested,
    /// Its current content reached the threshold of a calibration that was executed here.
    Hardened,
    /// Somebody published it as it is now.
    Published,
}

/// What is known of a version. Only what was executed here, on the content as it is now, counts: neither what a client
/// sent, nor a mocked case, nor what an earlier content passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownEvidence {
    /// Saved cases.
    pub cases: u32,
    /// Whether the current content passed a run of them.
    pub tested: bool,
    /// Whether it reached the threshold of a calibration.
    pub hardened: bool,
    /// Whether somebody published the current content: an act of its own, never a consequence.
    pub published: bool,
}

impl LifecycleStage {
    /// The highest rung that holds.
    pub fn of(known: &KnownEvidence) -> Self {
        let rungs = [
            (known.cases > 0, Self::HasFixtures),
            (known.tested, Self::Tested),
            (known.hardened, Self::Hardened),
            (known.published, Self::Published),
        ];
        let reached = rungs.into_iter().take_while(|(holds, _)| *holds).last();
        reached.map_or(Self::Draft, |(_, stage)| stage)
    }

    /// The word, as on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Draft => "draft",
            Self::HasFixtures => "has_fixtures",
            Self::Tested => "tested",
            Self::Hardened => "hardened",
            Self::Published => "published",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rung_holds_only_with_all_below_it() {
        for bits in 0..16_u32 {
            let holds = |bit: u32| bits & (1 << bit) != 0;
            let known = KnownEvidence {
                cases: u32::from(holds(0)) * 3,
                tested: holds(1),
                hardened: holds(2),
                published: holds(3),
            };
            let expected = match bits.trailing_ones() {
                0 => LifecycleStage::Draft,
                1 => LifecycleStage::HasFixtures,
                2 => LifecycleStage::Tested,
                3 => LifecycleStage::Hardened,
                _ => LifecycleStage::Published,
            };
            assert_eq!(LifecycleStage::of(&known), expected, "{known:?}");
        }
    }
}
