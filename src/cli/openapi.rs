//! `caliber openapi`: the document of the HTTP API.

use super::context::Context;
use super::failure::Outcome;

pub(crate) fn run(context: &Context) -> Outcome {
    context.output().document(&caliber::http::openapi())
}
