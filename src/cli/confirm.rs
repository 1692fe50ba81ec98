//! Asking a person before something happens.

use std::io::{BufRead, IsTerminal, Write};

use super::failure::{Exit, Failure, Outcome};

/// Asks `question`, unless `yes` was said already. Only a person at a terminal is asked; a script has to say so.
pub(crate) fn confirm(yes: bool, question: &str) -> Outcome {
    if yes {
        return Ok(());
    }
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err(Failure::usage("nobody is there to be asked; say --yes").with_hint(question.to_owned()));
    }
    let failed = |error: std::io::Error| Failure::io("the answer cannot be read", &error);
    let mut terminal = std::io::stderr();
    write!(terminal, "{question} [yes/no] ")
        .and_then(|()| terminal.flush())
        .map_err(failed)?;
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer).map_err(failed)?;
    if answer.trim().eq_ignore_ascii_case("yes") {
        Ok(())
    } else {
        Err(Failure::new(Exit::Failure, "nothing was done"))
    }
}
