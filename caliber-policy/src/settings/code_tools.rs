//! Which programs code tools may be.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use caliber_core::{Error, FieldProblem, Result};
use serde::{Deserialize, Serialize};

use super::problem;

/// The longest module path, in bytes.
const MODULE_LENGTH: usize = 512;
/// What stands for everything.
const EVERYTHING: &str = "*";

/// Which programs code tools may be. Asked when a tool is registered and again at each run: what is taken off a list
/// runs no more. An empty list allows nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CodeToolRules {
    /// The Python modules. Default: `*`, which is all: what a module can do is bounded by the sandbox.
    pub modules: Vec<ModulePattern>,
    /// The native executables: absolute paths, or `*`. Default: `*`.
    pub executables: Vec<String>,
}

impl Default for CodeToolRules {
    fn default() -> Self {
        Self {
            modules: vec![ModulePattern::Any],
            executables: vec![EVERYTHING.to_owned()],
        }
    }
}

impl CodeToolRules {
    /// Whether a module may be used.
    pub fn allow_module(&self, module: &str) -> bool {
        self.modules.iter().any(|pattern| pattern.matches(module))
    }

    /// Whether an executable may be used; it is compared as it is written.
    pub fn allow_executable(&self, executable: &Path) -> bool {
        self.executables
            .iter()
            .any(|allowed| allowed == EVERYTHING || executable.to_str() == Some(allowed))
    }

    /// Checks the rules.
    ///
    /// # Errors
    ///
    /// `Invalid`, naming every executable that is none.
    pub fn validate(&self) -> Result<()> {
        let plain = |text: &str| {
            let path = Path::new(text);
            let mut parts = path.components();
            path.is_absolute() && !parts.any(|part| matches!(part, std::path::Component::ParentDir))
        };
        let executables = self.executables.iter();
        let wrong = executables.filter(|text| *text != EVERYTHING && !plain(text));
        let problems: Vec<FieldProblem> = wrong
            .flat_map(|text| {
                let error = problem(
                    "code_tools.executables",
                    text,
                    "is no absolute path without `..`; write one, or * for all",
                );
                error.fields().to_vec()
            })
            .collect();
        if problems.is_empty() {
            Ok(())
        } else {
            Err(Error::invalid_fields(problems))
        }
    }
}

/// Modules that are allowed: one, all below a package, or all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ModulePattern {
    /// `*`: every module.
    Any,
    /// `reports.weekly`: this one.
    Module(String),
    /// `reports.*`: those below the package, however deep; not the package itself, and nothing that only begins alike.
    Below(String),
}

impl ModulePattern {
    /// Whether it allows a module.
    pub fn matches(&self, module: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Module(allowed) => module == allowed,
            Self::Below(package) => module
                .strip_prefix(package.as_str())
                .and_then(|rest| rest.strip_prefix('.'))
                .is_some_and(|rest| !rest.is_empty()),
        }
    }
}

impl FromStr for ModulePattern {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text == EVERYTHING {
            return Ok(Self::Any);
        }
        let (name, below) = match text.strip_suffix(".*") {
            Some(package) => (package, true),
            None => (text, false),
        };
        let part = |part: &str| {
            !part.is_empty()
                && !part.starts_with(|first: char| first.is_ascii_digit())
                && part
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        };
        if name.len() > MODULE_LENGTH || !name.split('.').all(part) {
            return Err(problem(
                "code_tools.modules",
                text,
                "names no module; write a dotted path, a package with .* behind it, or * for all",
            ));
        }
        Ok(if below {
            Self::Below(name.to_owned())
        } else {
            Self::Module(name.to_owned())
        })
    }
}

impl fmt::Display for ModulePattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => formatter.write_str(EVERYTHING),
            Self::Module(name) => formatter.write_str(name),
            Self::Below(package) => write!(formatter, "{package}.*"),
        }
    }
}

impl TryFrom<String> for ModulePattern {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<ModulePattern> for String {
    fn from(pattern: ModulePattern) -> Self {
        pattern.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allow(patterns: &[&str], module: &str) -> bool {
        let modules = patterns.iter().map(|pattern| pattern.parse().unwrap()).collect();
        let rules = CodeToolRules {
            modules,
            ..CodeToolRules::default()
        };
        rules.allow_module(module)
    }

    #[test]
    fn a_pattern_allows_what_it_says_and_nothing_that_looks_alike() {
        for (pattern, module, allowed) in [
            ("pkg", "pkg", true),
            ("pkg", "pkg.a", false),
            ("pkg", "pkgevil", false),
            ("pkg.*", "pkg.a", true),
            ("pkg.*", "pkg.a.b", true),
            ("pkg.*", "pkg", false),
            ("pkg.*", "pkg.", false),
            ("pkg.*", "pkgevil", false),
            ("pkg.*", "pkgevil.a", false),
            ("pkg.a.*", "pkg.a.b", true),
            ("pkg.a.*", "pkg.b", false),
            ("*", "anything.at.all", true),
        ] {
            assert_eq!(allow(&[pattern], module), allowed, "{pattern} and {module}");
        }
        assert!(allow(&["a", "b.*"], "b.c"));
        assert!(!allow(&[], "a"), "an empty list allows nothing");
        assert!(CodeToolRules::default().allow_module("os"));
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for text in [
            "", ".*", "pkg*", "pkg.*.a", "*.a", "pkg.**", "a b", "a..b", "1a", "pkg.", "ä",
        ] {
            assert!(text.parse::<ModulePattern>().is_err(), "{text:?}");
        }
        for text in ["*", "pkg", "pkg.a", "pkg.*"] {
            assert_eq!(text.parse::<ModulePattern>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn executables_are_exact() {
        let rules = CodeToolRules {
            executables: vec!["/usr/bin/tool".to_owned()],
            ..CodeToolRules::default()
        };
        assert!(rules.allow_executable(Path::new("/usr/bin/tool")));
        for other in ["/usr/bin/tool2", "/usr/bin", "/usr/bin/../bin/tool", "tool"] {
            assert!(!rules.allow_executable(Path::new(other)), "{other}");
        }
        assert!(rules.validate().is_ok());
        let wrong = CodeToolRules {
            executables: vec!["tool".to_owned(), "/a/../b".to_owned(), "*".to_owned()],
            ..CodeToolRules::default()
        };
        assert_eq!(wrong.validate().unwrap_err().fields().len(), 2);
    }
}
