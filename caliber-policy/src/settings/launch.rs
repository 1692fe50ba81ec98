//! What stdio servers may run.

use std::fmt;
use std::str::FromStr;

use caliber_core::{Error, Result};
use serde::{Deserialize, Serialize};

use super::problem;
use super::secrets::is_plain_path;

/// The command that stands for the one configured Python interpreter.
pub const PYTHON: &str = "${PYTHON}";

/// One thing that stdio servers may run: an executable together with its arguments.
///
/// An executable alone would be no rule: `npx`, `docker`, `uvx` or an interpreter run whatever their arguments say.
/// Written as one line, the words stand with white space between them, and a `*` at the end lets further arguments
/// follow; arguments that hold white space need the long form.
///
/// ```
/// use caliber_policy::settings::{ArgumentRule, LaunchRule};
/// let rule: LaunchRule = "/usr/bin/mcp-git --read-only *".parse()?;
/// assert_eq!(rule.arguments, ArgumentRule::Prefix(vec!["--read-only".into()]));
/// # Ok::<(), caliber_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Input")]
pub struct LaunchRule {
    /// [`PYTHON`], an absolute path, or a bare name that is looked up on the safe path. It matches a command that is
    /// written the same. A path also matches a bare name of the same name that is found there; it matches no other
    /// path that leads there, because whoever can write a link could let it lead elsewhere between check and start,
    /// and because many programs act by the name they are called by.
    pub executable: String,
    /// The arguments that it may be given.
    pub arguments: ArgumentRule,
}

/// The arguments of a [`LaunchRule`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArgumentRule {
    /// These, and no others.
    Exact(Vec<String>),
    /// These first, then any. Never enough for the Python interpreter, under whatever name it is called.
    Prefix(Vec<String>),
    /// `-m` and this module first, then any. For [`PYTHON`].
    Module(String),
    /// A script first, then any. It is written by its real path, here and in the definition, so that no link stands
    /// between check and start.
    Script(String),
}

/// What the machine says about a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resolved<'a> {
    /// The real path of the executable.
    pub(crate) executable: Option<&'a str>,
    /// Whether it is the Python interpreter.
    pub(crate) is_python: bool,
    /// The real path of the first argument.
    pub(crate) script: Option<&'a str>,
}

impl LaunchRule {
    /// Whether this rule is about the executable that `command` starts.
    pub(crate) fn is_about(&self, command: &str, resolved: Resolved<'_>) -> bool {
        let is_found_there = resolved.executable == Some(&self.executable)
            && self.executable.rsplit('/').next() == Some(command);
        self.executable == command || is_found_there
    }

    /// Whether the executable may be given `args`.
    pub(crate) fn fits(&self, args: &[String], resolved: Resolved<'_>) -> bool {
        match &self.arguments {
            ArgumentRule::Exact(exact) => args == exact,
            ArgumentRule::Prefix(prefix) => !resolved.is_python && args.starts_with(prefix),
            ArgumentRule::Module(module) => {
                matches!(args, [option, name, ..] if option == "-m" && name == module)
            }
            ArgumentRule::Script(script) => args.first() == Some(script) && resolved.script == Some(script),
        }
    }

    /// Checks that the rule can mean something.
    ///
    /// # Errors
    ///
    /// `Invalid`, saying what is wrong.
    pub fn validate(&self) -> Result<()> {
        let wrong = |what: &str| Err(problem("launch", self, what));
        let is_python = self.executable == PYTHON;
        if !is_python && !is_bare_name(&self.executable) && !is_plain_path(&self.executable) {
            return wrong(
                "has no executable that can be pinned; write an absolute path, a bare name or ${PYTHON}",
            );
        }
        match &self.arguments {
            ArgumentRule::Exact(exact) if is_python && exact.is_empty() => {
                wrong("would read its program from its input; add `-m module *` or a script")
            }
            ArgumentRule::Prefix(_) if is_python => wrong(
                "leaves open what runs; write `-m module *`, `/absolute/script.py *` or exact arguments",
            ),
            ArgumentRule::Module(_) if !is_python => wrong("names a module; only ${PYTHON} runs modules"),
            ArgumentRule::Module(module) if !is_module(module) => {
                wrong("names no module; write it as in `package.module`")
            }
            ArgumentRule::Script(script) if !is_plain_path(script) => {
                wrong("names no script; write its real path, absolute")
            }
            _ => Ok(()),
        }
    }
}

fn is_bare_name(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._+-".contains(&byte))
        && !matches!(name, "." | "..")
}

fn is_module(name: &str) -> bool {
    name.split('.').all(|part| {
        !part.is_empty()
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            && !part.starts_with(|first: char| first.is_ascii_digit())
    })
}

impl FromStr for LaunchRule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text.contains(['"', '\'', '\\']) {
            return Err(problem(
                "launch",
                text,
                "holds a quote or a backslash, which mean nothing here; use the long form with a list of arguments",
            ));
        }
        let mut words: Vec<String> = text.split_ascii_whitespace().map(str::to_owned).collect();
        if words.is_empty() {
            return Err(problem(
                "launch",
                text,
                "is empty; name an executable and its arguments",
            ));
        }
        let executable = words.remove(0);
        let open = words.pop_if(|last| last == "*").is_some();
        let arguments = match (open, executable == PYTHON, words.as_slice()) {
            (false, ..) => ArgumentRule::Exact(words),
            (true, true, [option, module]) if option == "-m" => ArgumentRule::Module(module.clone()),
            (true, true, [script]) if script.starts_with('/') => ArgumentRule::Script(script.clone()),
            (true, ..) => ArgumentRule::Prefix(words),
        };
        let rule = Self {
            executable,
            arguments,
        };
        rule.validate()?;
        Ok(rule)
    }
}

impl fmt::Display for LaunchRule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.executable)?;
        match &self.arguments {
            ArgumentRule::Exact(words) => words.iter().try_for_each(|word| write!(formatter, " {word}")),
            ArgumentRule::Prefix(words) => {
                words.iter().try_for_each(|word| write!(formatter, " {word}"))?;
                formatter.write_str(" *")
            }
            ArgumentRule::Module(module) => write!(formatter, " -m {module} *"),
            ArgumentRule::Script(script) => write!(formatter, " {script} *"),
        }
    }
}

/// A rule in a document: one line, or the long form.
#[derive(Deserialize)]
#[serde(untagged)]
enum Input {
    Line(String),
    Long(Long),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Long {
    executable: String,
    arguments: ArgumentRule,
}

impl TryFrom<Input> for LaunchRule {
    type Error = Error;

    fn try_from(input: Input) -> Result<Self> {
        match input {
            Input::Line(line) => line.parse(),
            Input::Long(Long {
                executable,
                arguments,
            }) => {
                let rule = Self {
                    executable,
                    arguments,
                };
                rule.validate()?;
                Ok(rule)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_says_what_is_pinned() {
        use ArgumentRule::*;
        let list = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        for (line, executable, arguments) in [
            ("/usr/bin/x", "/usr/bin/x", Exact(list(&[]))),
            ("/usr/bin/x --a b", "/usr/bin/x", Exact(list(&["--a", "b"]))),
            ("/usr/bin/x --a *", "/usr/bin/x", Prefix(list(&["--a"]))),
            ("mcp-git *", "mcp-git", Prefix(list(&[]))),
            ("${PYTHON} -m a.b *", PYTHON, Module("a.b".into())),
            ("${PYTHON} -m a.b", PYTHON, Exact(list(&["-m", "a.b"]))),
            ("${PYTHON} /opt/a.py *", PYTHON, Script("/opt/a.py".into())),
            ("${PYTHON} -c pass", PYTHON, Exact(list(&["-c", "pass"]))),
        ] {
            let rule: LaunchRule = line.parse().unwrap();
            assert_eq!(
                rule,
                LaunchRule {
                    executable: executable.into(),
                    arguments
                },
                "{line}"
            );
            assert_eq!(rule.to_string(), line);
        }
    }

    #[test]
    fn what_pins_nothing_is_no_rule() {
        for wrong in [
            "",
            "*",
            "..",
            "./x",
            "bin/x",
            "$(x)",
            "x;y",
            "/usr/../bin/x",
            "/usr/bin/",
            "/",
            "${PYTHON}",
            "${PYTHON} *",
            "${PYTHON} -c *",
            "${PYTHON} -m *",
            "${PYTHON} -m a..b *",
            "${PYTHON} -m a;b *",
            "${PYTHON} relative.py *",
            "${PYTHON} /opt/../a.py *",
            "/bin/x 'a b'",
        ] {
            assert!(wrong.parse::<LaunchRule>().is_err(), "{wrong}");
        }
        let module = LaunchRule {
            executable: "/usr/bin/node".into(),
            arguments: ArgumentRule::Module("a".into()),
        };
        assert!(module.validate().is_err());
    }
}
